"""Serves the graphs beside this file with `langgraph dev`; prints `listening on <url>`.

Exits when stdin closes; the line `kill` on stdin kills the server. The server writes into its working
folder, which is therefore a copy. If the requested port is taken, it silently uses another, so the address
is read from its output.
"""

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main() -> None:
    program = pathlib.Path(sys.executable).with_name("langgraph")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("graph.py", "langgraph.json"):
            shutil.copy(pathlib.Path(__file__).with_name(name), folder)
        server = subprocess.Popen(
            [program, "dev", "--no-browser", "--no-reload", "--n-jobs-per-worker", "8",
             "--host", "127.0.0.1", "--port", str(free_port())],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
            env={**os.environ, "LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1"},
        )
        threading.Thread(target=tell, args=(server,), daemon=True).start()
        sys.stdin.readline()
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def tell(server: subprocess.Popen) -> None:
    log: list[str] = []
    for line in server.stdout:
        if found := re.search(r"API: .*?(http://[\w.:]+)", line):
            await_answer(server, found[1])
            break
        log.append(line)
    if server.poll() is not None:
        print("the server ended:", *log, *server.stdout, sep="\n", flush=True)
        return
    print(f"listening on {found[1]}", flush=True)
    for _ in server.stdout:
        pass


def await_answer(server: subprocess.Popen, url: str) -> None:
    """Waits until the server answers; it prints its address before it listens."""
    while server.poll() is None:
        try:
            with urllib.request.urlopen(url + "/ok", timeout=5):
                return
        except OSError:
            time.sleep(0.05)


main()
