#!/usr/bin/env python3
"""Measures the cost of a large store: time until a bridge started on it is ready, and latency of writes
while retention empties it.

    cargo build --release && tests/measure/stores.py target/release/forge-bridge --finished 1000000 --pending 100000
    tests/measure/stores.py target/release/forge-bridge --finished 100000 --expired

A bridge creates the store by running one dispatch to its end with another one queued; the rows of those two are
then copied in SQL, each copy with its own ids and events, so that the store looks as written by the bridge.
A measurement, not a check: figures depend on the machine. Needs Linux and the echo adapter beside the program.
"""

import argparse
import http.client
import http.server
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time

DAY = 24 * 3600 * 10**9
YEAR = 365 * DAY


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Bridge:
    def __init__(self, program, home, **more):
        environment = {
            "HOME": home,
            "BRIDGE_LISTEN": "127.0.0.1:0",
            "BRIDGE_DATA_DIR": f"{home}/data",
            "BRIDGE_SECRET_KEY_FILE": f"{home}/secret.key",
            "BRIDGE_PLUGIN_PATH": os.path.dirname(program),
            "BRIDGE_ADAPTERS": "echo",
            "BRIDGE_ADAPTERS_ECHO_MAX_CONCURRENT": "1",
            "BRIDGE_CALLBACK_ALLOW": "loopback",
            "BRIDGE_DRAIN_GRACE": "1s",
            "BRIDGE_DRAIN_ACCEPT": "0s",
            **more,
        }
        began = time.monotonic()
        self.process = subprocess.Popen([program], env=environment, stderr=subprocess.PIPE, text=True, cwd=home)
        for line in self.process.stderr:
            if found := re.search(r"listening on http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                break
        else:
            sys.exit("the bridge did not start")
        # Drains stderr, because a full pipe would block the bridge.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port)
        while self.ask("GET", "/api/health/ready")[0] != 200:
            time.sleep(0.002)
        self.ready_after = time.monotonic() - began
        with open(f"/proc/{self.process.pid}/stat") as file:
            user, system = file.read().rsplit(")", 1)[1].split()[11:13]
        self.spent = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def ask(self, method, path, body=None):
        self.connection.request(method, path, body and json.dumps(body), {"content-type": "application/json"})
        answer = self.connection.getresponse()
        return answer.status, answer.read()

    def dispatch(self, task, model, callback=None):
        status, body = self.ask("POST", "/api/v2/dispatch", {
            "taskId": task, "agentId": "agent", "message": "m" * 100, "model": model, "callbackUrl": callback,
        })
        assert status == 202, body
        return task

    def status(self, task):
        return json.loads(self.ask("GET", f"/api/v2/dispatch/{task}")[1])["status"]

    def resident(self):
        with open(f"/proc/{self.process.pid}/status") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) / 1024

    def end(self, how):
        self.process.send_signal(how)
        self.process.wait()


def until(done):
    while not done():
        time.sleep(0.01)


def make(program, home):
    """Creates a store with one finished dispatch, and one queued behind a running one."""
    receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    bridge = Bridge(program, home)
    bridge.dispatch("finished", "stream:3", f"http://127.0.0.1:{receiver.server_port}/callback")
    until(lambda: b'"delivered"' in bridge.ask("GET", "/api/v2/dispatch/finished")[1])
    bridge.dispatch("busy", "slow:3600000")
    until(lambda: bridge.status("busy") == "running")
    bridge.dispatch("pending", "slow:3600000")
    bridge.end(signal.SIGKILL)


def identifier(number):
    """A UUIDv7, whose prefix grows with `number`."""
    milliseconds = 1_700_000_000_000 + number // 4
    tail = (number * 2654435761) & ((1 << 62) - 1)
    return ((milliseconds << 80) | (0x7 << 76) | ((number & 0xFFF) << 64) | (0x2 << 62) | tail).to_bytes(16, "big")


def copy(store, task, count, **changed):
    """Adds `count` copies of the dispatch with this task id and of all its rows."""
    (original,) = store.execute("SELECT seq FROM dispatch WHERE task_id = ?", [task]).fetchone()
    newest = ("SELECT max(seq + first_events - 1, coalesce((SELECT max(last) FROM event WHERE dispatch = seq), 0)) "
              "FROM dispatch {} ORDER BY 1 DESC LIMIT 1")
    (last,) = store.execute(newest.format("WHERE seq = ?"), [original]).fetchone()
    (log,) = store.execute(newest.format("")).fetchone()
    # The row number is the position of the first event; each copy takes as many positions as the original.
    further = f"({log} + 1 - {original} + (i - 1) * {last - original + 1})"
    place = {
        "dispatch": {"seq": f"seq + {further}", "id": f"identifier({log} + i)", "task_id": f"task_id || '-' || i",
                     **changed},
        "body": {"dispatch": f"dispatch + {further}"},
        "result": {"dispatch": f"dispatch + {further}"},
        "event": {"dispatch": f"dispatch + {further}", "first": f"first + {further}", "last": f"last + {further}"},
        # Ended one after the other over 30 days, which the cost is added up by.
        "spending": {"dispatch": f"dispatch + {further}", "at": f"at - ({count} - i) * ({30 * DAY} / {count})"},
    }
    for table, changes in place.items():
        columns = [row[1] for row in store.execute(f"PRAGMA table_info({table})")]
        chosen = ", ".join(changes.get(column, column) for column in columns)
        key = "seq" if table == "dispatch" else "dispatch"
        store.execute(
            f"WITH RECURSIVE copies(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM copies WHERE i < {count}) "
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {chosen} FROM copies, {table} "
            f"WHERE {table}.{key} = {original} ORDER BY i")


def fill(home, finished, pending, expired):
    store = sqlite3.connect(f"{home}/data/bridge.db")
    store.create_function("identifier", 1, identifier, deterministic=True)
    store.execute("PRAGMA synchronous = OFF")
    store.execute("PRAGMA cache_size = -262144")
    if finished:
        expires = time.time_ns() - 10**9 if expired else time.time_ns() + YEAR
        copy(store, "finished", finished, expires_at=str(expires))
    if pending:
        copy(store, "pending", pending)
    store.commit()
    store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def held_up(program, home):
    """Posts dispatches one by one while retention runs, and for the same time (at most 20 s) after it."""
    # The interval leaves time for the other work of a start.
    bridge = Bridge(program, home, BRIDGE_ADAPTERS_ECHO_MAX_CONCURRENT="8", BRIDGE_RETENTION_EVERY="1s")
    store = sqlite3.connect(f"file:{home}/data/bridge.db?mode=ro", uri=True)

    def left():
        sql = "SELECT count(*) FROM dispatch WHERE expires_at IS NOT NULL AND expires_at < ?"
        return store.execute(sql, [time.time_ns()]).fetchone()[0]

    stop, waits = threading.Event(), []

    def write():
        number = 0
        while not stop.is_set():
            number += 1
            began = time.perf_counter()
            bridge.dispatch(f"light-{number}", "ok")
            waits.append(time.perf_counter() - began)
            time.sleep(0.01)

    began, before = time.monotonic(), left()
    writer = threading.Thread(target=write)
    writer.start()
    while left() > 0:
        time.sleep(0.5)
    took, during = time.monotonic() - began, list(waits)
    waits.clear()
    time.sleep(min(took, 20))
    stop.set()
    writer.join()
    bridge.end(signal.SIGTERM)
    print(f"retention: {before:,} dispatches in {took:.1f} s")
    for label, values in (("during", during), ("after", waits)):
        shown = "  ".join(
            f"{name} {percentile(values, share) * 1000:6.1f} ms"
            for name, share in (("p50", 0.5), ("p99", 0.99), ("worst", 1)))
        print(f"{label:>9}  {len(values):6,} accepted  {shown}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", type=os.path.abspath)
    parser.add_argument("--finished", type=int, default=0)
    parser.add_argument("--pending", type=int, default=0)
    parser.add_argument("--expired", action="store_true", help="finished dispatches are past their retention")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--home", type=os.path.abspath, help="folder to keep the store in; an existing store is used")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as other:
        home, began = given.home or other, time.monotonic()
        os.makedirs(home, exist_ok=True)
        if not os.path.exists(f"{home}/data"):
            make(given.program, home)
            fill(home, given.finished, given.pending, given.expired)
        size = os.path.getsize(f"{home}/data/bridge.db") / 2**20
        print(f"{given.finished:,} finished, {given.pending:,} pending: {size:,.0f} MiB, "
              f"made in {time.monotonic() - began:.0f} s", flush=True)
        if given.expired:
            held_up(given.program, home)
            return
        for number in range(given.starts):
            bridge = Bridge(given.program, home)
            print(f"start {number + 1}: ready after {bridge.ready_after:.2f} s, CPU time "
                  f"{bridge.spent:.2f} s, {bridge.resident():.0f} MiB", flush=True)
            bridge.end(signal.SIGKILL if number % 2 == 0 else signal.SIGTERM)


main()
