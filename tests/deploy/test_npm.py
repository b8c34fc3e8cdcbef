"""The packages for npm: built from a release, installed from their files without a registry, and used."""

from __future__ import annotations

import json
import signal
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from bridges import started
from charts import ROOT
from conftest import run

SCRIPT = ROOT / "config/deploy/npm.py"
NPM = {"npm_config_offline": "true", "npm_config_update_notifier": "false"}


def pack(out: Path, *releases: Path) -> dict[str, dict[str, Any]]:
    """Builds the packages; returns their manifests by file name."""
    run([str(SCRIPT), str(out), *map(str, releases)])
    manifests = {}
    for file in out.glob("*.tgz"):
        with tarfile.open(file) as archive:
            manifest = archive.extractfile("package/package.json")
            assert manifest is not None
            manifests[file.name] = json.load(manifest)
    return manifests


def pretend(folder: Path, machine: int) -> Path:
    """A release whose program is for this `e_machine` of ELF, and no more than that."""
    (folder / "plugins").mkdir(parents=True)
    for name in ("forge", "forg", "forg-conformance", "LICENSE-APACHE", "LICENSE-MIT"):
        (folder / name).touch()
    (folder / "forge-bridge").write_bytes(b"\x7fELF".ljust(18, b"\0") + machine.to_bytes(2, "little"))
    return folder


def install(folder: Path, *packages: Path) -> Path:
    folder.mkdir()
    (folder / "package.json").write_text('{"private": true}')
    cache = str(folder / ".cache")
    run(["npm", "install", "--no-audit", "--no-fund", *map(str, packages)], folder, npm_config_cache=cache, **NPM)
    return folder


@pytest.fixture(scope="module")
def packages(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the packages of this build."""
    out = tmp_path_factory.mktemp("packages")
    pack(out, release)
    return out


@pytest.fixture(scope="module")
def project(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a project with the packages installed."""
    return install(tmp_path_factory.mktemp("project") / "project", *packages.glob("*.tgz"))


def test_a_dispatch_runs_through_npx(project: Path, tmp_path: Path) -> None:
    with started(project / "node_modules/.bin/forge-bridge", tmp_path, BRIDGE_DRAIN_ACCEPT="0s") as (bridge, url):
        program = project / "node_modules/@forge-bridge/linux-x64/forge-bridge"
        assert Path(f"/proc/{bridge.pid}/exe").samefile(program), "the launcher replaces itself"
        command = ["dispatch", "Hello from npm", "--model", "stream:3", "--url", url]
        said = run(["npx", "--no-install", "forge-bridge", *command], project, **NPM)
        assert "Hello from npm 3" in said and "\nok in " in said, said
        bridge.send_signal(signal.SIGTERM)
        assert bridge.wait(60) == 0


@pytest.mark.parametrize(("name", "text"), [("forge", "forge"), ("forg", "forg"), ("forg-conformance", "conformance")])
def test_the_short_names_run(project: Path, name: str, text: str) -> None:
    assert f"Usage: forge-bridge {text}" in run([str(project / "node_modules/.bin" / name), "--help"])


def test_an_exit_code_is_that_of_the_program(project: Path) -> None:
    done = subprocess.run([project / "node_modules/.bin/forge-bridge", "nonsense"], capture_output=True, text=True)
    assert done.returncode == 2 and "nonsense" in done.stderr


def test_without_the_package_of_the_machine_it_says_what_to_do(packages: Path, tmp_path: Path) -> None:
    main = next(path for path in packages.glob("*.tgz") if "linux" not in path.name)
    project = install(tmp_path / "project", main)
    done = subprocess.run([project / "node_modules/.bin/forge-bridge"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "forge-bridge: the package @forge-bridge/linux-x64 is not installed" in done.stderr


def test_each_platform_has_a_package(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    manifests = pack(out, pretend(tmp_path / "a", 62), pretend(tmp_path / "b", 183))
    (version,) = {manifest["version"] for manifest in manifests.values()}
    assert sorted(manifests) == [
        f"forge-bridge-{version}.tgz",
        f"forge-bridge-linux-arm64-{version}.tgz",
        f"forge-bridge-linux-x64-{version}.tgz",
    ]
    main = manifests[f"forge-bridge-{version}.tgz"]
    names = ["@forge-bridge/linux-arm64", "@forge-bridge/linux-x64"]
    assert main["optionalDependencies"] == {name: version for name in names}
    arm = manifests[f"forge-bridge-linux-arm64-{version}.tgz"]
    assert (arm["name"], arm["os"], arm["cpu"], arm["libc"]) == (names[0], ["linux"], ["arm64"], ["glibc"])


def test_only_the_script_makes_what_can_be_published(tmp_path: Path) -> None:
    assert json.loads((ROOT / "config/deploy/npm/package.json").read_text())["private"] is True
    manifests = pack(tmp_path, pretend(tmp_path / "a", 62))
    assert not any("private" in manifest for manifest in manifests.values())


@pytest.mark.parametrize("machine", [0, 3])
def test_a_program_for_another_machine_is_refused(tmp_path: Path, machine: int) -> None:
    command = [SCRIPT, tmp_path, pretend(tmp_path / "a", machine)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0 and "is not a program for one of x64, arm64" in done.stderr
    assert list(tmp_path.glob("*.tgz")) == []
