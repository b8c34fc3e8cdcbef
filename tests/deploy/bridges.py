"""A bridge with the adapter `echo` in a home folder of its own."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def listening(child: subprocess.Popen[bytes], log: Path, pattern: str) -> str:
    """Waits until the log has the pattern; returns its group."""
    deadline = time.monotonic() + 60
    while not (found := re.search(pattern, log.read_text())):
        assert child.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
    return found[1]


@contextmanager
def started(program: Path, home: Path, **settings: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A running bridge, and its URL."""
    settings = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "BRIDGE_ADAPTERS": "echo",
        "BRIDGE_LISTEN": "127.0.0.1:0",
        "BRIDGE_SIGNALS_LISTEN": "127.0.0.1:0",
        **settings,
    }
    log = home / "log"
    with open(log, "wb") as output:
        child = subprocess.Popen([program], cwd=home, env=settings, stderr=output, stdin=subprocess.DEVNULL)
    try:
        yield child, listening(child, log, r"listening on (http://[\d.:]+)")
    finally:
        child.kill()
        child.wait()
