"""The layout of a release archive, made once."""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from charts import ROOT

PROGRAM = Path(os.environ["FORGE_BRIDGE"]).resolve()
PLUGINS = Path(os.environ.get("FORGE_PLUGINS") or PROGRAM.parent)
# Adapter libraries that the tests run; of the others the name is enough, since those of debug builds are large.
REAL = ["libforge_adapter_echo.so"]


def build_context(to: Path) -> None:
    """Copies what `docker build` gets of the sources, by the patterns for whole entries of the root folder."""
    patterns = (ROOT / "config/deploy/Dockerfile.dockerignore").read_text().split()
    assert patterns[0] == "*"
    kept = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        source = ROOT / name
        if source.exists() and any(fnmatch.fnmatch(name.split("/")[0], pattern) for pattern in kept):
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, to / name, follow_symlinks=False)


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release with the programs and libraries of this build, without their symbols, from the sources that an image's
    build has."""
    sources, built = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("built")
    build_context(sources)
    for name in ("forge-bridge", "forge", "forg", "forg-conformance"):
        run(["strip", "-o", str(built / name), str(PROGRAM.parent / name)])
    for library in PLUGINS.glob("libforge_adapter_*.so"):
        if library.name in REAL:
            run(["strip", "-o", str(built / library.name), str(library)])
        else:
            (built / library.name).touch()
    to = tmp_path_factory.mktemp("release") / "forge-bridge"
    run([str(sources / "config/deploy/release.sh"), "--lay", str(built), str(to)])
    return to


def run(command: list[str], folder: Path | None = None, **variables: str) -> str:
    """Runs a command, which has to succeed, with these variables and no other settings; returns its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BRIDGE_")}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environment, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}"
    return done.stdout
