#!/usr/bin/env bash
# Builds the release archive forge-bridge-<version>-<target>.tar.gz in cargo's target folder, with its SHA-256 file.
#
#   release.sh                 build with the profile `dist` and pack
#   release.sh --lay FROM TO   only create the archive's layout in TO, from the program and libraries in FROM
set -euo pipefail
cd "$(dirname "$0")/../.."

# Prints the crates below adapters/ that build a shared library.
adapters() {
  local manifest
  for manifest in adapters/*/Cargo.toml; do
    if grep -q '"cdylib"' "$manifest"; then basename "$(dirname "$manifest")"; fi
  done
}

# Copies files and folders of the sources to the same paths below the folder $1, so that links between them hold.
keep() {
  tar --exclude=target --exclude=node_modules --exclude=__pycache__ -c -- "${@:2}" | tar -x -C "$1"
}

# Replaces links of the pages below the folder $1 by their text if the archive does not have their target.
links() {
  python3 -c '
import pathlib, re, sys
for page in pathlib.Path(sys.argv[1]).rglob("*.md"):
    def kept(link):
        target = link[2].partition("#")[0]
        there = not target or "://" in target or (page.parent / target).exists()
        return link[0] if there else link[1].removeprefix("!").strip("[]")
    page.write_text(re.sub(r"(!?\[[^\]]*\])\(([^)\s]+)\)", kept, page.read_text()))
' "$1"
}

# Prints a workspace manifest for the packages in adapter-api alone.
workspace() {
  printf '# Workspace of the packages in adapter-api, which adapters in Rust depend on.\n'
  printf '[workspace]\nmembers = ["adapter-api", "adapter-api/abi"]\nexclude = ["plugins/examples"]\nresolver = "3"\n\n'
  awk '/^\[/{inside = /^\[workspace\./} inside && !/path = "(adapters|bridge|tests)\//' Cargo.toml
}

lay() {
  local from=$1 to=$2 adapter shell file pages=()
  mkdir -p "$to"/{plugins,completions,man}
  install -m 0755 "$from/forge-bridge" "$from/forge" "$from/forg" "$from/forg-conformance" "$to/"
  for adapter in $(adapters); do
    install -m 0644 "$from/libforge_adapter_${adapter//-/_}.so" "$to/plugins/"
    pages+=("adapters/$adapter/README.md")
  done
  keep "$to" LICENSE-* CHANGELOG.md SECURITY.md docs examples bridge/openapi.json bridge/console/*.png bridge/schemas
  keep "$to" adapters/README.md "${pages[@]}" adapter-api plugins/*.md plugins/examples
  keep "$to" config/README.md config/forge-bridge.toml config/examples config/grafana config/prometheus/alerts.yml
  keep "$to" config/deploy/{README.md,forge-bridge.service,kubernetes.yaml,kubernetes.postgres.yaml,helm}
  install -m 0644 config/deploy/archive.md "$to/README.md"
  workspace > "$to/Cargo.toml"
  links "$to"
  for shell in bash:forge-bridge.bash elvish:forge-bridge.elv fish:forge-bridge.fish \
    powershell:_forge-bridge.ps1 zsh:_forge-bridge; do
    file=${shell#*:}
    "$to/forge-bridge" completions "${shell%%:*}" > "$to/completions/$file"
  done
  "$to/forge-bridge" manual "$to/man"
}

# Collects the licence texts of all linked crates, as most licences require.
licences() {
  cargo metadata --format-version 1 --locked --filter-platform "$2" | python3 -c '
import json, pathlib, shutil, sys
metadata = json.load(sys.stdin)
names = {package["id"]: package for package in metadata["packages"]}
nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
start = [id for id, package in names.items() if not package["source"] and "/tests/" not in package["manifest_path"]]
seen, todo = set(), list(start)
while todo:
    id = todo.pop()
    if id not in seen:
        seen.add(id)
        todo += [d["pkg"] for d in nodes[id]["deps"] if any(kind["kind"] is None for kind in d["dep_kinds"])]
for package in sorted((names[id] for id in seen if names[id]["source"]), key=lambda p: (p["name"], p["version"])):
    print(package["name"], package["version"], package["license"] or "see its files", sep="\t")
    folder = pathlib.Path(sys.argv[1]) / (package["name"] + "-" + package["version"])
    for file in sorted(pathlib.Path(package["manifest_path"]).parent.iterdir()):
        if file.is_file() and file.name.upper().startswith(("LICEN", "COPYING", "NOTICE", "UNLICENSE")):
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / file.name)
' "$1" > "$1.tsv"
}

if [ "${1:-}" = --lay ]; then
  lay "$2" "$3"
  exit
fi

packages=(-p forge-bridge)
for adapter in $(adapters); do packages+=(-p "forge-adapter-$adapter"); done
cargo build --locked --profile dist "${packages[@]}"

built=$(cargo metadata --format-version 1 --locked --no-deps |
  python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
target=$(rustc -vV | sed -n 's/^host: //p')
version=$("$built/dist/forge-bridge" --version | cut -d ' ' -f 2)
name=forge-bridge-$version-$target
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
lay "$built/dist" "$work/$name"
licences "$work/$name/third-party" "$target"
cd "$built"
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-$(date +%s)}" \
  -C "$work" -czf "$name.tar.gz" "$name"
sha256sum "$name.tar.gz" > "$name.tar.gz.sha256"
ls -l "$PWD/$name.tar.gz"
