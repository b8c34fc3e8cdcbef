#!/usr/bin/env python3
"""Measures the memory cost of due deliveries: fills a store with deliveries to one receiver, starts the
bridge on it, and samples memory while that receiver hangs, refuses connections, or accepts, and while a
second receiver is served concurrently.

    cargo build --release && tests/measure/due.py target/release/forge-bridge 1000 1000000

A measurement, not a check: figures depend on the machine. Needs Linux and the echo adapter beside the
program. Everything is on loopback.
"""

import http.client
import http.server
import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time

SECONDS = 12


class Receiver(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, hangs):
        super().__init__(("127.0.0.1", 0), Handler)
        self.hangs, self.taken = hangs, 0
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        if self.server.hangs:
            time.sleep(3600)
        self.server.taken += 1
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def memory(pid):
    with open(f"/proc/{pid}/status") as file:
        status = file.read()
    return [int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 1024 for name in ("VmRSS", "RssAnon")]


def start(program, home):
    environment = {
        "HOME": home, "BRIDGE_LISTEN": "127.0.0.1:0", "BRIDGE_DATA_DIR": f"{home}/data",
        "BRIDGE_SECRET_KEY_FILE": f"{home}/secret.key", "BRIDGE_PLUGIN_PATH": os.path.dirname(program),
        "BRIDGE_ADAPTERS": "echo", "BRIDGE_CALLBACK_ALLOW": "loopback", "BRIDGE_LOG_LEVEL": "info",
        "BRIDGE_DRAIN_ACCEPT": "0s", "BRIDGE_DRAIN_GRACE": "1s",
    }
    began = time.monotonic()
    bridge = subprocess.Popen([program], env=environment, stderr=subprocess.PIPE, text=True, cwd=home)
    for line in bridge.stderr:
        if found := re.search(r"listening on http://127\.0\.0\.1:(\d+)", line):
            took = time.monotonic() - began
            threading.Thread(target=bridge.stderr.read, daemon=True).start()
            return bridge, int(found[1]), took
    sys.exit("the bridge did not start")


def dispatch(port, task, callback):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/api/v2/dispatch", json.dumps({
        "taskId": task, "agentId": "agent", "message": "m" * 300, "model": "ok", "callbackUrl": callback,
    }), {"content-type": "application/json"})
    assert connection.getresponse().status == 202


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


def fill(program, home, count, origin):
    """Lets the bridge write one dispatch, then adds `count` copies with due deliveries to this origin."""
    taken = Receiver(hangs=False)
    bridge, port, _ = start(program, home)
    dispatch(port, "model", f"http://127.0.0.1:{taken.server_port}/callback")
    until(lambda: taken.taken == 1)
    time.sleep(0.5)
    bridge.terminate()
    bridge.wait()
    taken.shutdown()
    database = sqlite3.connect(next(
        os.path.join(folder, name) for folder, _, names in os.walk(f"{home}/data") for name in names
        if open(os.path.join(folder, name), "rb").read(15) == b"SQLite format 3"
    ), isolation_level=None)
    database.execute("PRAGMA synchronous = OFF")
    database.execute("BEGIN")
    for table, key, made in (
        ("dispatch", "seq", {
            # A row number is the position of a first event; the original has fewer than 20.
            "seq": "seq + 20 * n", "id": "randomblob(16)", "task_id": "'due-' || n", "header_key": "NULL",
            "expires_at": "NULL", "callback_url": f"'{origin}/callback'", "callback_origin": f"'{origin}'",
            "delivery": "0", "delivery_attempts": "0", "due_at": "finished_at + n", "settled_at": "NULL",
            "last_at": "NULL",
        }),
        ("body", "dispatch", {"dispatch": "dispatch + 20 * n"}),
        ("result", "dispatch", {"dispatch": "dispatch + 20 * n"}),
    ):
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        values = ", ".join(made.get(column, column) for column in columns)
        database.execute(
            f"WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})"
            f" INSERT INTO {table} ({', '.join(columns)}) SELECT {values}"
            f" FROM (SELECT * FROM {table} ORDER BY {key} LIMIT 1), numbers"
        )
    database.execute("COMMIT")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()


def measure(program, count, manner):
    with tempfile.TemporaryDirectory(dir=os.environ.get("MEASURE_DIR")) as home:
        receiver = None
        if manner == "refuses":
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
        else:
            receiver = Receiver(hangs=manner == "hangs")
            port = receiver.server_port
        fill(program, home, count, f"http://127.0.0.1:{port}")
        other = Receiver(hangs=False)
        bridge, api, took = start(program, home)
        highest, anonymous, beside = 0, 0, []
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            rss, anon = memory(bridge.pid)
            highest, anonymous = max(highest, rss), max(anonymous, anon)
            began, served = time.monotonic(), other.taken
            dispatch(api, f"beside-{began}", f"http://127.0.0.1:{other.server_port}/callback")
            until(lambda: other.taken > served)
            beside.append(time.monotonic() - began)
            time.sleep(0.1)
        beside.sort()
        taken = receiver.taken if receiver else 0
        print(
            f"{count:>9,} due, receiver {manner:8}  ready in {took:5.2f} s  highest RSS {highest:6.1f} MiB"
            f" (anonymous {anonymous:6.1f})  delivered {taken:6}  another receiver is served in"
            f" {beside[len(beside) // 2] * 1000:.0f} ms (p50 of {len(beside)}), {beside[-1] * 1000:.0f} ms at most",
            flush=True,
        )
        bridge.kill()
        bridge.wait()


def main():
    program = os.path.abspath(sys.argv[1])
    for manner in ("hangs", "refuses", "takes"):
        for count in map(int, sys.argv[2:4]):
            measure(program, count, manner)


main()
