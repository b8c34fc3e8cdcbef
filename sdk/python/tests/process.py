"""A bridge with the echo adapter in a folder of its own, which can be restarted on the same address."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

PROGRAM = os.environ.get("FORGE_BRIDGE") or ""
# Without the program there is no bridge to run them against: `tests/e2e/sdk.rs` names it.
against_a_bridge = pytest.mark.skipif(not PROGRAM, reason="FORGE_BRIDGE does not name the program")

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Process:
    def __init__(self, program: str, home: Path) -> None:
        self.program = program
        self.home = home
        self.url = ""
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "BRIDGE_LISTEN": self.url.removeprefix("http://") or "127.0.0.1:0",
            "BRIDGE_SIGNALS_LISTEN": "127.0.0.1:0",
            "BRIDGE_DATA_DIR": f"{self.home}/data",
            "BRIDGE_SECRET_KEY_FILE": f"{self.home}/secret.key",
            "BRIDGE_PLUGIN_PATH": os.environ.get("FORGE_PLUGINS") or str(Path(self.program).parent),
            "BRIDGE_ADAPTERS": "echo",
            "BRIDGE_CALLBACK_ALLOW": "loopback",
            "BRIDGE_CALLBACK_SECRETS": SECRET,
            "BRIDGE_DRAIN_ACCEPT": "0s",
            "BRIDGE_RUNS_PROVIDER": "echo",
            "BRIDGE_RUNS_MODEL": "run",
            "BRIDGE_RUNS_LOCAL_ROOTS": str(self.home),
        }
        # The log goes to a file: a pipe that is not read would block the bridge.
        log = self.home / "log"
        with open(log, "ab") as output:
            offset = output.tell()
            self._child = subprocess.Popen(
                [self.program], cwd=self.home, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        while True:
            said = log.read_bytes()[offset:].decode()
            if found := re.search(r"listening on (http://[\d.:]+)", said):
                self.url = found[1]
                return
            try:
                self._child.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
            raise RuntimeError(f"the bridge ended:\n{said}")

    def stop(self) -> None:
        if self._child is not None:
            self._child.send_signal(signal.SIGTERM)
            self._child.wait()
            self._child = None


def repository(origin: Path, folder: Path) -> Path:
    """Makes a repository with one commit."""
    author = {f"GIT_{who}_{what}": "t@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    for command in (
        ["init", "--quiet", "--initial-branch=main", "work"],
        ["-C", "work", "commit", "--quiet", "--allow-empty", "-m", "first"],
        ["clone", "--quiet", "--bare", "work", str(origin)],
    ):
        environment = {**os.environ, **author, "GIT_CONFIG_GLOBAL": "/dev/null"}
        subprocess.run(["git", *command], cwd=folder, check=True, env=environment)
    return origin
