#!/usr/bin/env python3
"""Records commands in a terminal as an asciicast (version 2), and draws it as docs/terminal.svg.

    record.py CAST PROGRAM COMMAND ...      records the commands with this build of the program
    record.py --docs PROGRAM                records `demo` and `drill`, and draws docs/terminal.svg

The commands are typed into a shell whose only program of ours is this one. Adapters are those beside the program, or in
FORGE_PLUGINS. Folders of this machine are replaced by those of an installation.
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import select
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

COLUMNS, ROWS = 100, 30
# Seconds: between two typed letters, and before a command.
TYPING, PAUSE = 0.05, 0.8
# What is written within this time is one event of the recording.
TOGETHER = 0.01
PROMPT = "$ "
# Longest time of one command.
LIMIT = 300
DOCS = ["forge-bridge demo", "forge-bridge drill --kills 20"]
SVG = Path(__file__).resolve().parents[3] / "docs/terminal.svg"


class Terminal:
    """A shell in a terminal of its own, and the events of the recording."""

    def __init__(self, home: Path, program: Path, plugins: Path) -> None:
        self.events: list[tuple[float, str]] = []
        self._folders = {str(home): "/home/me", str(plugins): "/opt/forge-bridge/plugins"}
        self._folders[str(program.parent)] = "/opt/forge-bridge"
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        (home / "bin").mkdir()
        (home / "bin/forge-bridge").symlink_to(program)
        environment = {
            "PATH": f"{home}/bin:/usr/bin:/bin",
            "HOME": str(home),
            "TMPDIR": str(home),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "PS1": PROMPT,
            "BRIDGE_PLUGIN_PATH": str(plugins),
        }
        self._shell, self._terminal = pty.fork()
        if self._shell == 0:
            os.chdir(home)
            os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], environment)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._began = time.monotonic()
        self._read(PAUSE)

    def type(self, command: str) -> None:
        """Types a command, and waits until it has ended and the shell asks for the next one."""
        for letter in f"{command}\n":
            os.write(self._terminal, letter.encode())
            self._read(TYPING)
        deadline = time.monotonic() + LIMIT
        while os.tcgetpgrp(self._terminal) != self._shell or not self.events[-1][1].endswith(PROMPT):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{command} runs for more than {LIMIT} s")
            self._read(TOGETHER)
        self._read(PAUSE)

    def close(self) -> None:
        os.write(self._terminal, b"\x04")
        os.waitpid(self._shell, 0)
        os.close(self._terminal)

    def _read(self, seconds: float) -> None:
        """Reads what the terminal shows for this time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self._terminal], [], [], left)[0]:
                return
            began, text = time.monotonic(), b""
            while select.select([self._terminal], [], [], TOGETHER)[0]:
                text += os.read(self._terminal, 1 << 16)
            shown = self._decoder.decode(text)
            for here, there in self._folders.items():
                shown = shown.replace(here, there)
            self.events.append((began - self._began, shown))


def record(program: Path, commands: list[str]) -> str:
    """The recording of these commands as an asciicast."""
    program = program.resolve()
    plugins = Path(os.environ.get("FORGE_PLUGINS") or program.parent).resolve()
    with tempfile.TemporaryDirectory(prefix="forge-record-") as folder:
        terminal = Terminal(Path(folder).resolve(), program, plugins)
        for command in commands:
            terminal.type(command)
        terminal.close()
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "env": {"TERM": "xterm-256color", "SHELL": "/bin/bash"}}
    lines = [header, *([round(at, 3), "o", text] for at, text in terminal.events)]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] == "--docs":
        from render import render

        SVG.write_text(render(record(Path(sys.argv[2]), DOCS)))
    elif len(sys.argv) > 3:
        Path(sys.argv[1]).write_text(record(Path(sys.argv[2]), sys.argv[3:]))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
