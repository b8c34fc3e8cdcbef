"""The release archive: its contents, the links of its pages, and what its README says to run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from charts import ROOT
from conftest import run

README = (ROOT / "config/deploy/archive.md").read_text()


def test_it_has_every_adapter(release: Path) -> None:
    manifests = [path for path in (ROOT / "adapters").glob("*/Cargo.toml") if '"cdylib"' in path.read_text()]
    adapters = {path.parent.name for path in manifests}
    assert len(adapters) > 10
    libraries = {f"libforge_adapter_{name.replace('-', '_')}.so" for name in adapters}
    assert {path.name for path in (release / "plugins").glob("*.so")} == libraries
    assert {path.parent.name for path in (release / "adapters").glob("*/README.md")} == adapters


def test_the_readme_names_what_is_there(release: Path) -> None:
    assert (release / "README.md").read_text() == README
    rows = re.findall(r"^\| (`[^|]+) \|", README, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    for name in named - {"third-party/"}:
        assert (release / name).exists(), name
    for name in re.findall(r"`((?:docs|config|adapters)/[^`]+)`", README):
        assert (release / name).exists(), name
    hidden = {entry.name for entry in release.iterdir()} - {name.split("/")[0] for name in named}
    # The workspace of adapter-api, and the page itself.
    assert hidden == {"Cargo.toml", "README.md"}


@pytest.mark.parametrize(
    "file",
    [
        *("completions/_forge-bridge", "completions/forge-bridge.fish", "man/forge-bridge-dispatch.1"),
        *("config/deploy/helm/forge-bridge/Chart.yaml", "config/deploy/forge-bridge.service"),
        *("config/grafana/forge-bridge.json", "config/prometheus/alerts.yml", "bridge/console/agent.png"),
    ],
)
def test_it_has_the_file(release: Path, file: str) -> None:
    assert (release / file).stat().st_size > 0


def test_it_has_nothing_that_builds_left(release: Path) -> None:
    left = {"target", "node_modules", "__pycache__", "Dockerfile", "compose.yaml", "release.sh", "archive.md"}
    assert [path for path in release.rglob("*") if path.name in left] == []


def test_links_lead_to_files(release: Path) -> None:
    pages = list(release.rglob("*.md"))
    followed = 0
    for page in pages:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            path = target.partition("#")[0]
            if path and "://" not in path:
                assert (page.parent / path).exists(), f"{page.relative_to(release)}: {target}"
                followed += 1
    assert len(pages) > 20 and followed > 50
    # A link to a file of the sources alone keeps its text.
    text = (release / "docs/adapters.md").read_text()
    assert "CONTRIBUTING.md" in text and "(../CONTRIBUTING.md)" not in text


def test_it_runs_from_any_folder(release: Path, tmp_path: Path) -> None:
    said = run([str(release / "forge-bridge"), "demo"], Path("/"), HOME=str(tmp_path))
    assert "valid signature" in said
    said = run(["./forge-bridge", "check", "--load"], release, HOME=str(tmp_path), BRIDGE_ADAPTERS="echo")
    assert "no errors" in said
    run(["bash", "-n", str(release / "completions/forge-bridge.bash")])


def test_its_interface_is_that_of_the_program(release: Path) -> None:
    document = json.loads((release / "bridge/openapi.json").read_text())
    version = run([str(release / "forge-bridge"), "--version"]).split()[1]
    assert document["info"]["version"] == version


def test_an_adapter_in_c_needs_its_header_only(release: Path, tmp_path: Path) -> None:
    library = tmp_path / "libforge_adapter_c_echo.so"
    flags = ["-std=gnu11", "-shared", "-fPIC", "-pthread", "-I", "adapter-api/abi"]
    run(["cc", *flags, "-o", str(library), "plugins/examples/c-echo/adapter.c"], release)
    library.chmod(0o755)
    said = run(["./forge-bridge", "adapters", "test", str(library)], release, HOME=str(tmp_path))
    assert " 0 failed" in said, said


def test_an_adapter_in_rust_finds_its_packages(release: Path, tmp_path: Path) -> None:
    command = re.findall(r"^\./forge-bridge (adapters new .+)$", README, re.MULTILINE)[0].split()
    package = tmp_path / "shout"
    run(["./forge-bridge", *command, "--path", str(package)], release, HOME=str(tmp_path))
    assert json.dumps(str(release / "adapter-api")) in (package / "Cargo.toml").read_text()
    # It resolves what the manifests inherit, and compiles nothing.
    read = run(["cargo", "metadata", "--no-deps", "--offline", "--format-version", "1"], release)
    found = {package["name"] for package in json.loads(read)["packages"]}
    assert found == {"forge-adapter-abi", "forge-adapter-api"}
