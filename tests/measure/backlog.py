#!/usr/bin/env python3
"""Measures the cost of a backlog: memory with few and with many dispatches queued behind a running one,
acceptance rate, and duration of a start with the whole backlog.

    cargo build --release && tests/measure/backlog.py target/release/forge-bridge 1000 100000

A measurement, not a check: figures depend on the machine. Needs Linux and the echo adapter beside the program.
"""

import concurrent.futures
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

CONNECTIONS = 64


def memory(pid):
    """VmRSS and RssAnon in MiB."""
    with open(f"/proc/{pid}/status") as file:
        status = file.read()
    return {name: int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 1024 for name in ("VmRSS", "RssAnon")}


def start(program, home):
    environment = {
        "HOME": home,
        "BRIDGE_LISTEN": "127.0.0.1:0",
        "BRIDGE_DATA_DIR": f"{home}/data",
        "BRIDGE_SECRET_KEY_FILE": f"{home}/secret.key",
        "BRIDGE_PLUGIN_PATH": os.path.dirname(program),
        "BRIDGE_ADAPTERS": "echo",
        "BRIDGE_ADAPTERS_ECHO_MAX_CONCURRENT": "1",
        "BRIDGE_CALLBACK_ALLOW": "loopback",
    }
    began = time.monotonic()
    bridge = subprocess.Popen([program], env=environment, stderr=subprocess.PIPE, text=True, cwd=home)
    for line in bridge.stderr:
        if found := re.search(r"listening on http://127\.0\.0\.1:(\d+)", line):
            took = time.monotonic() - began
            # Drains stderr, because a full pipe would block the bridge.
            threading.Thread(target=bridge.stderr.read, daemon=True).start()
            return bridge, int(found[1]), took
    sys.exit("the bridge did not start")


def post(connection, dispatch):
    connection.request("POST", "/api/v2/dispatch", json.dumps(dispatch), {"content-type": "application/json"})
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 202, body


def fill(port, first, end):
    def some(offset):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for number in range(first + offset, end, CONNECTIONS):
            post(connection, {
                "taskId": f"task-{number}", "agentId": "agent", "message": "m" * 700, "model": "ok",
                "callbackUrl": "http://127.0.0.1:9/callback",
            })

    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(some, range(CONNECTIONS)))
    return (end - first) / (time.monotonic() - began)


def show(label, figures, more=""):
    print(f"{label:>12}  " + "  ".join(f"{name} {value:6.1f} MiB" for name, value in figures.items()) + more)


def main():
    program = os.path.abspath(sys.argv[1])
    few, many = int(sys.argv[2]), int(sys.argv[3])
    with tempfile.TemporaryDirectory() as home:
        bridge, port, _ = start(program, home)
        show("idle", memory(bridge.pid))
        post(http.client.HTTPConnection("127.0.0.1", port), {
            "taskId": "busy", "agentId": "agent", "message": "m", "model": "slow:3600000",
            "callbackUrl": None, "timeout": 7200,
        })
        held = []
        for first, end in ((0, few), (few, many)):
            rate = fill(port, first, end)
            # Time for temporary memory to be released.
            time.sleep(3)
            held.append(memory(bridge.pid))
            show(f"{end:,}", held[-1], f"  {rate:,.0f}/s")
        show("difference", {name: held[1][name] - held[0][name] for name in held[0]})
        bridge.kill()
        bridge.wait()
        bridge, _, took = start(program, home)
        show("restarted", memory(bridge.pid), f"  in {took:.2f} s")
        bridge.kill()
        bridge.wait()


main()
