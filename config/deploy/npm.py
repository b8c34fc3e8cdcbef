#!/usr/bin/env python3
"""Builds the packages for npm from folders with the layout of a release archive, one folder for each platform.

    npm.py OUT RELEASE ...

Writes `forge-bridge-VERSION.tgz`, and for each folder `forge-bridge-PLATFORM-VERSION.tgz` with its programs and adapters.
The first depends on the others optionally, and npm installs the one for its machine. The manifest in `npm/` is private,
so that nothing but these files can be published.
"""

import gzip
import io
import json
import pathlib
import sys
import tarfile
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# npm's name of a processor by `e_machine` of the ELF header.
PROCESSORS = {62: "x64", 183: "arm64"}
LICENCES = ["LICENSE-APACHE", "LICENSE-MIT"]


def processor(program: pathlib.Path) -> str:
    with open(program, "rb") as file:
        header = file.read(20)
    number = int.from_bytes(header[18:20], "little")
    if header[:4] != b"\x7fELF" or number not in PROCESSORS:
        raise SystemExit(f"{program} is not a program for one of {', '.join(PROCESSORS.values())}")
    return PROCESSORS[number]


def pack(out: pathlib.Path, manifest: dict[str, object], files: dict[str, pathlib.Path], programs: set[str]) -> None:
    """Writes a package. The same files make the same bytes."""
    name = str(manifest["name"]).removeprefix("@").replace("/", "-")
    text = json.dumps(manifest, indent=2).encode() + b"\n"
    with (
        open(out / f"{name}-{manifest['version']}.tgz", "wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=6, filename="", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for path in sorted([*files, "package.json"]):
            content = files[path].read_bytes() if path in files else text
            entry = tarfile.TarInfo(f"package/{path}")
            entry.size = len(content)
            entry.mode = 0o755 if path in programs else 0o644
            archive.addfile(entry, io.BytesIO(content))
    print(out / f"{name}-{manifest['version']}.tgz")


def main() -> None:
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    out, *releases = map(pathlib.Path, sys.argv[1:])
    manifest = json.loads((HERE / "npm/package.json").read_text())
    manifest["version"] = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    del manifest["private"]
    shared = {key: manifest[key] for key in ("version", "description", "license", "os")}
    names = list(manifest["bin"])
    manifest["optionalDependencies"] = {}
    for release in releases:
        cpu = processor(release / "forge-bridge")
        name = f"@forge-bridge/linux-{cpu}"
        if name in manifest["optionalDependencies"]:
            raise SystemExit(f"two of the folders are for {cpu}")
        manifest["optionalDependencies"][name] = manifest["version"]
        files = {path: release / path for path in [*names, *LICENCES]}
        kept = [*release.glob("plugins/*.so"), *release.glob("third-party*"), *release.glob("third-party/*/*")]
        files |= {str(path.relative_to(release)): path for path in kept if path.is_file()}
        pack(out, {"name": name, **shared, "cpu": [cpu], "libc": ["glibc"]}, files, set(names))
    launchers = {manifest["bin"][name]: HERE / "npm/launch.sh" for name in names}
    texts = {"README.md": HERE / "npm/README.md", **{name: ROOT / name for name in LICENCES}}
    pack(out, manifest, {**launchers, **texts}, set(launchers))


if __name__ == "__main__":
    main()
