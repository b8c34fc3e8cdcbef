"""A bridge with its settings in a home folder of its own, and the shell that runs commands of the pages beside it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

from blocks import Block

PROGRAM = Path(os.environ["FORGE_BRIDGE"]).resolve()
PLUGINS = os.environ.get("FORGE_PLUGINS") or str(PROGRAM.parent)
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Bridge:
    """A bridge with this configuration, in the default folders below `home`."""

    def __init__(self, home: Path, settings: str = "", **variables: str) -> None:
        self.home = home
        self.url = ""
        (home / "forge-bridge.toml").write_text(settings)
        programs = home / "bin"
        programs.mkdir()
        (programs / "forge-bridge").symlink_to(PROGRAM)
        # The launchers look for the program beside themselves; they do no more than this.
        for name in ("forge", "forg"):
            (programs / name).write_text(f'#!/bin/sh\nexec forge-bridge {name} "$@"\n')
            (programs / name).chmod(0o755)
        self.variables = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "BRIDGE_LISTEN": "127.0.0.1:0",
            "BRIDGE_SIGNALS_LISTEN": "127.0.0.1:0",
            "BRIDGE_PLUGIN_PATH": PLUGINS,
            "BRIDGE_CALLBACK_ALLOW": "loopback",
            "BRIDGE_DRAIN_ACCEPT": "0s",
            "BRIDGE_DRAIN_GRACE": "1s",
            **variables,
        }
        # Addresses as the pages have them, and as they are here.
        self.addresses: dict[str, str] = {}
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = self.home / "log"
        with open(log, "ab") as output:
            self._child = subprocess.Popen(
                [self.home / "bin/forge-bridge"],
                cwd=self.home,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        while not (found := re.search(r"listening on (http://[\d.:]+)", log.read_text())):
            try:
                self._child.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
            raise RuntimeError(f"the bridge ended:\n{log.read_text()}")
        self.url = found[1]
        with urllib.request.urlopen(f"{self.url}/api/health") as answer:
            agent = json.load(answer)["signals"]["agent"]
        self.variables |= {"BRIDGE_URL": self.url, "FORG_AGENT_URL": f"http://{agent}"}
        here = self.url.removeprefix("http://")
        self.addresses |= {"127.0.0.1:7420": here, "localhost:7420": here, "127.0.0.1:6247": agent}

    def stop(self) -> None:
        if self._child is not None:
            self._child.send_signal(signal.SIGTERM)
            self._child.wait()
            self._child = None

    def command(self, *words: str) -> None:
        """Runs one command, which has to succeed."""
        subprocess.run(words, cwd=self.home, env=self.variables, check=True, stdout=subprocess.DEVNULL)

    def shell(self, block: Block) -> str:
        """Runs a block of commands, all of which have to succeed; returns what they print."""
        code = block.code
        for page, here in self.addresses.items():
            code = code.replace(page, here)
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", code],
            cwd=self.home,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        output = ran.stdout
        for page, here in self.addresses.items():
            output = output.replace(here, page)
        assert ran.returncode == 0, f"{block.place}: exit code {ran.returncode}\n{output}"
        return output

    def run(self, block: Block) -> None:
        """Runs a block of commands; the lines that the page shows below it have to be in the output, in their order."""
        output = [uniform(line) for line in self.shell(block).splitlines()]
        at = 0
        for line in block.output.splitlines():
            wanted = re.compile(".*".join(re.escape(part) for part in uniform(line).split("…")))
            while at < len(output) and not wanted.fullmatch(output[at]):
                at += 1
            shown = "\n".join(output)
            assert at < len(output), f"{block.place}: the output has no further line {uniform(line)!r}:\n{shown}"
            at += 1


def uniform(line: str) -> str:
    """A line without what differs between runs: ids, digests, numbers, and the width of columns."""
    line = re.sub(r"\b(dlv|dsp|req|run|sess|fbt)_[\w-]+", r"\1_0", line)
    line = re.sub(r"\b(?=[a-f]*\d)[0-9a-f]{8,}\b", "0", line)
    line = re.sub(r"\d+(\.\d+)?", "0", line).replace("0µs", "0ms")
    line = re.sub(r"0-0-0T0:0:0(\.0)?Z?", "0", line)
    return re.sub(r"\s+", " ", line).strip()
