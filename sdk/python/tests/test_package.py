"""The package as a whole: generated files, types, and the wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).parent.parent


def run(*command: str, folder: Path = HERE) -> str:
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_generated_files_are_current() -> None:
    run("unasync.py", "--check")
    run("../wire/generate.py", "--check")


def test_sources_and_tests_are_typed(types: Path) -> None:
    run("-m", "mypy", "--strict", "--cache-dir", str(types), "src", "tests")


def test_the_wheel_can_be_imported_and_has_types_and_licences(tmp_path: Path) -> None:
    run("-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path))
    [source] = tmp_path.glob("forge_bridge-*.tar.gz")
    shutil.unpack_archive(source, tmp_path)
    run(
        "-m",
        "hatchling",
        "build",
        "-t",
        "wheel",
        "-d",
        str(tmp_path),
        folder=tmp_path / source.name.removesuffix(".tar.gz"),
    )
    [wheel] = tmp_path.glob("forge_bridge-*-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "forge_bridge/py.typed" in names
    assert len([name for name in names if "/licenses/LICENSE-" in name]) == 2
    assert [name for name in names if "test" in name or "unasync" in name] == []
    program = f"import sys; sys.path.insert(0, {str(wheel)!r}); import forge_bridge; print(forge_bridge.__file__)"
    assert run("-c", program, folder=tmp_path).startswith(str(wheel))
