"""Runs an OpenClaw gateway whose models are those of a fake one; prints `listening on <url>`.

    serve.py MODEL_URL TOKEN NODE OPENCLAW_MJS

The first line of stdin is JSON that is merged over the settings below. The gateway works in a folder of its own, which is removed at the end. Exits when stdin closes. Further lines on stdin:
`kill` kills the gateway, `start` starts it again on the same port and prints `listening` again, and `set` with JSON
behind it merges this over the settings, which the gateway reads again by itself.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request


def settings(model: str, token: str) -> dict:
    provider = {
        "baseUrl": f"{model}/v1", "apiKey": "fake-local", "api": "openai-completions",
        "models": [{
            "id": "fake-1", "name": "Fake 1", "reasoning": False, "input": ["text"],
            "cost": {"input": 1, "output": 2, "cacheRead": 0.1, "cacheWrite": 0},
            "contextWindow": 128_000, "maxTokens": 4_096,
        }],
    }
    return {
        "gateway": {"mode": "local", "bind": "loopback", "auth": {"mode": "token", "token": token}},
        # A provider that refused a key or was overloaded is not asked again for a minute.
        "models": {"mode": "merge", "providers": {
            name: provider for name in ("fake", "locked", "unpaid", "limited", "broken", "barred")
        }},
        "agents": {
            "defaults": {"model": {"primary": "fake/fake-1"}, "skipBootstrap": True, "heartbeat": {"every": "0m"}},
            "entries": {"main": {"default": True}},
        },
        "skills": {"install": {"allowUploadedArchives": True}},
        "plugins": {"enabled": False},
    }


def merge(settings: dict, more: dict) -> dict:
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(settings.get(name), dict):
            merge(settings[name], value)
        else:
            settings[name] = value
    return settings


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Gateway:
    def __init__(self, command: list[str], folder: pathlib.Path, settings: dict) -> None:
        self.folder = folder
        self.port = free_port()
        self.command = [*command, "gateway", "run", "--port", str(self.port), "--bind", "loopback"]
        for name in ("home", "state", "workspace"):
            (folder / name).mkdir()
        settings["gateway"]["port"] = self.port
        settings["agents"]["defaults"]["workspace"] = str(folder / "workspace")
        (folder / "openclaw.json").write_text(json.dumps(settings))

    def start(self) -> None:
        folder = self.folder
        log = open(folder / "log", "ab")
        self.process = subprocess.Popen(
            self.command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env={
                "HOME": str(folder / "home"),
                "PATH": f"{pathlib.Path(self.command[0]).parent}:/usr/bin:/bin",
                "OPENCLAW_STATE_DIR": str(folder / "state"),
                "OPENCLAW_CONFIG_PATH": str(folder / "openclaw.json"),
                "OPENCLAW_DISABLE_BONJOUR": "1",
                "OPENCLAW_NO_RESPAWN": "1",
                "OPENCLAW_EXEC_SHELL_SNAPSHOT": "0",
                "OPENCLAW_SKIP_CHANNELS": "1",
            },
        )
        url = f"http://127.0.0.1:{self.port}"
        while self.process.poll() is None:
            try:
                with urllib.request.urlopen(url + "/readyz", timeout=5):
                    print(f"listening on {url} in {folder}", flush=True)
                    return
            except OSError:
                time.sleep(0.1)
        print("the gateway ended:", (folder / "log").read_text(), sep="\n", flush=True)

    def set(self, change: dict) -> None:
        file = self.folder / "openclaw.json"
        changed = self.folder / "openclaw.json.new"
        changed.write_text(json.dumps(merge(json.loads(file.read_text()), change)))
        changed.replace(file)

    def kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def main() -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        model, token, *command = sys.argv[1:]
        more = json.loads(sys.stdin.readline())
        gateway = Gateway(command, pathlib.Path(folder), merge(settings(model, token), more))
        gateway.start()
        for line in sys.stdin:
            if line == "kill\n":
                gateway.kill()
            elif line == "start\n":
                gateway.start()
            elif line.startswith("set "):
                gateway.set(json.loads(line.removeprefix("set ")))
        gateway.kill()


main()
