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


MISTAKES = """
from forge_bridge import Bridge

bridge = Bridge("http://127.0.0.1:7420")
bridge.run({"taskId": "t", "agentId": "a", "message": "m", "timeoutSecs": 5})  # type: ignore[typeddict-unknown-key]
bridge.dispatch({"taskId": "t", "agentId": "a", "message": "m"})  # type: ignore[typeddict-item]
bridge.show("t")["dispatchID"]  # type: ignore[typeddict-item]
for event in bridge.events():
    if event["type"] == "assistant.txt":  # type: ignore[comparison-overlap]
        pass
    if event["type"] == "usage":
        print(event["data"]["delta"])  # type: ignore[typeddict-item]
"""


def test_mistakes_do_not_pass_a_type_checker(tmp_path: Path, types: Path) -> None:
    # A comment that hides no error is an error.
    (tmp_path / "mistakes.py").write_text(MISTAKES)
    run("-m", "mypy", "--strict", "--cache-dir", str(types), str(tmp_path / "mistakes.py"))


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
