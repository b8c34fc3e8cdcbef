#!/usr/bin/env python3
"""Measures dispatches one after another on PostgreSQL: the processor time that the server spends on each of them for the
connection that writes, in turn for the rows alone (`forge-bench floor`) and for bridges.

    cargo build --release -p forge-bridge -p forge-adapter-echo -p forge-bench
    tests/measure/alone.py "host=/var/run/postgresql user=forge" target/release

Further folders hold other builds. The server runs on this machine, where databases named `alone_…` are created and dropped.
Its figure does not depend on how the programs were built, and little on other work beside them; that of the programs does.
Needs Linux, `psql`, and the right to read the server's files in /proc.
"""

import argparse
import http.client
import http.server
import json
import os
import pathlib
import socket
import statistics
import subprocess
import tempfile
import threading
import time


class Receiver(http.server.BaseHTTPRequestHandler):
    waiting = {}
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
        self.waiting[body["taskId"]].set()

    def log_message(self, *_):
        pass


def ask(server, database, sql):
    program = ["psql", f"{server} dbname={database}", "-qAtc", sql]
    return subprocess.run(program, check=True, capture_output=True, text=True).stdout


def spent(process):
    """Processor time of all threads in seconds."""
    threads = pathlib.Path(f"/proc/{process}/task").iterdir()
    return sum(int((one / "schedstat").read_text().split()[0]) for one in threads) / 1e9


def writing(server, database):
    """Processor time of the connections that have committed last."""
    sql = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query = 'COMMIT'"
    return sum(spent(process) for process in ask(server, database, sql).split())


def url(server, database):
    parts = dict(part.split("=", 1) for part in server.split())
    host, port = parts["host"].replace("/", "%2F"), parts.get("port", "5432")
    return f"postgres://{parts['user']}@{host}:{port}/{database}?sslmode=disable"


def dispatch(connection, task, callback):
    arrived = Receiver.waiting[task] = threading.Event()
    connection.request("POST", "/api/v2/dispatch", json.dumps({
        "taskId": task, "agentId": "bench", "message": "lorem ipsum " * 48, "model": "ok", "provider": "echo",
        "callbackUrl": callback, "runId": "run-bench",
    }), {"content-type": "application/json"})
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 202, body
    assert arrived.wait(20), "no callback"


def measure(server, program, callback, count):
    """Microseconds of the server and of the program for each dispatch."""
    database = f"alone_{os.getpid()}"
    ask(server, "postgres", f"CREATE DATABASE {database}")
    with socket.create_server(("127.0.0.1", 0)) as free, tempfile.TemporaryDirectory() as folder:
        port = free.getsockname()[1]
        free.close()
        store, listen = url(server, database), f"127.0.0.1:{port}"
        command = program if "bridge" in program[0] else [*program, "--listen", listen, f"--store={store}"]
        settings = {
            "BRIDGE_LISTEN": listen, "BRIDGE_STORE": store, "BRIDGE_SIGNALS_LISTEN": "off",
            "BRIDGE_DATA_DIR": f"{folder}/data", "BRIDGE_SECRET_KEY_FILE": f"{folder}/key",
            "BRIDGE_ADAPTERS": "echo", "BRIDGE_CALLBACK_ALLOW": "loopback", "BRIDGE_LOG_LEVEL": "warn",
        }
        process = subprocess.Popen(command, env={**os.environ, **settings}, stderr=subprocess.DEVNULL)
        try:
            end = time.monotonic() + 30
            while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < end:
                time.sleep(0.05)
            connection = http.client.HTTPConnection("127.0.0.1", port)
            for number in range(count // 2):
                dispatch(connection, f"warm-{number}", callback)
            before = writing(server, database), spent(process.pid)
            for number in range(count):
                dispatch(connection, f"task-{number}", callback)
            after = writing(server, database), spent(process.pid)
        finally:
            process.kill()
            process.wait()
            ask(server, "postgres", f"DROP DATABASE {database} WITH (FORCE)")
    return [(now - then) / count * 1e6 for then, now in zip(before, after)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("server", help="address for psql, with host and user")
    parser.add_argument("builds", nargs="+", type=os.path.abspath)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=300)
    given = parser.parse_args()
    receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    callback = f"http://127.0.0.1:{receiver.server_port}/callback"
    programs = {"rows alone": [f"{given.builds[0]}/forge-bench", "floor"]}
    programs |= {build: [f"{build}/forge-bridge"] for build in given.builds}
    found = {name: [] for name in programs}
    for _ in range(given.rounds):
        for name, program in programs.items():
            found[name].append(measure(given.server, program, callback, given.count))
    alone = statistics.median(server for server, _ in found["rows alone"])
    for name, figures in found.items():
        server, own = (statistics.median(figure) for figure in zip(*figures))
        print(f"{name:40}  server {server:6.0f} µs ({server / alone:.2f})  program {own:6.0f} µs")


main()
