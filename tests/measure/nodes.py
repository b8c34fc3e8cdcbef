#!/usr/bin/env python3
"""Loads three bridges that share a PostgreSQL database, and stops or replaces them meanwhile.

    cargo build --release
    tests/measure/nodes.py stops postgres://USER@HOST:PORT/DATABASE target/release/forge-bridge 25
    tests/measure/nodes.py restart postgres://USER@HOST:PORT/DATABASE OLD/forge-bridge target/release/forge-bridge

`stops` halts one bridge at a time (SIGSTOP) for 1 to 2.5 s and prints the longest 202 of the others in each. `restart` begins
with three bridges of the old program and replaces one after the other, as a rolling update does. Both send from six
connections, a third of it in sessions, and compare what was accepted with what was delivered; ends with 1 if anything is
lost, doubled or refused.

The database has to be empty. A measurement, not a check: it needs Linux, the echo adapter beside each program and a trusted
login. Everything else is on loopback.
"""

import collections
import http.client
import http.server
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

# A stop of 2.5 s after a third of it is still within two thirds.
LEASE = "9s"
SENDERS = 6
PAUSE = 0.02
PATIENCE = 120


class Receiver(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.received, self.lock = collections.defaultdict(set), threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        with self.server.lock:
            self.server.received[json.loads(body)["taskId"]].add((self.headers["webhook-id"], body))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Node:
    def __init__(self, home, key, store):
        self.home, self.key, self.store = home, key, store
        self.serves, self.process = False, None

    def start(self, program):
        program = os.path.abspath(program)
        environment = {
            "HOME": self.home, "PATH": os.environ["PATH"], "BRIDGE_STORE": self.store, "BRIDGE_STORE_LEASE": LEASE,
            "BRIDGE_DATA_DIR": f"{self.home}/data", "BRIDGE_SECRET_KEY_FILE": self.key,
            "BRIDGE_LISTEN": "127.0.0.1:0", "BRIDGE_PLUGIN_PATH": os.path.dirname(program), "BRIDGE_ADAPTERS": "echo",
            "BRIDGE_CALLBACK_ALLOW": "loopback", "BRIDGE_SIGNALS_LISTEN": "off", "BRIDGE_LOG_LEVEL": "info",
            "BRIDGE_DRAIN_ACCEPT": "2s", "BRIDGE_DRAIN_GRACE": "10s",
        }
        self.process = subprocess.Popen([program], env=environment, stderr=subprocess.PIPE, text=True, cwd=self.home)
        log = []
        for line in self.process.stderr:
            log.append(line)
            if found := re.search(r"listening on http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                threading.Thread(target=self.process.stderr.read, daemon=True).start()
                self.serves = True
                return
        sys.exit("the bridge did not start:\n" + "".join(log))

    def is_ready(self):
        try:
            return self.ask("GET", "/api/health/ready", None, 1)[0] == 200
        except OSError:
            return False

    def ask(self, method, path, body, timeout):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"{}")
        finally:
            connection.close()

    def replace(self, program):
        """As a proxy: sends nothing more once the bridge is not ready, which it says before it refuses."""
        self.process.terminate()
        while self.serves and self.process.poll() is None:
            self.serves = self.is_ready()
        self.serves = False
        self.process.wait()
        self.start(program)


class Load:
    def __init__(self, nodes, callback):
        self.nodes, self.callback = nodes, callback
        self.accepted, self.refused, self.answers = {}, collections.Counter(), []
        self.next, self.lock, self.is_over = 0, threading.Lock(), False
        self.senders = [threading.Thread(target=self.send) for _ in range(SENDERS)]
        for sender in self.senders:
            sender.start()

    def send(self):
        while not self.is_over:
            with self.lock:
                self.next += 1
                task = f"t{self.next}"
            body = {"taskId": task, "agentId": "agent", "message": "m" * 300, "callbackUrl": self.callback,
                    "recovery": "retry", "model": random.choice(["ok", "ok", "slow:200"])}
            if random.random() < 0.3:
                body["sessionId"] = f"s{random.randrange(20)}"
            while not self.post(task, json.dumps(body)):
                time.sleep(0.05)
            time.sleep(PAUSE)

    def post(self, task, body):
        serving = [node for node in self.nodes if node.serves]
        if not serving:
            return False
        node, began = random.choice(serving), time.monotonic()
        try:
            status, answer = node.ask("POST", "/api/v2/dispatch", body, 20)
        except OSError as error:
            status, answer = type(error).__name__, {}
        with self.lock:
            if status == 202:
                self.accepted[task] = answer["dispatchId"]
                self.answers.append((began, time.monotonic(), node))
            elif node.serves:
                # The same task is sent again, to any of them.
                self.refused[f"{status} {answer.get('code', '')}"] += 1
        return status == 202

    def end(self):
        self.is_over = True
        for sender in self.senders:
            sender.join()


def stop(nodes, count):
    """Halts bridges; returns the times."""
    stops = []
    for _ in range(count):
        time.sleep(random.uniform(0.3, 1.2))
        node = random.choice(nodes)
        node.serves = False
        node.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        time.sleep(random.uniform(1, 2.5))
        stops.append((began, time.monotonic(), node))
        node.process.send_signal(signal.SIGCONT)
        time.sleep(0.3)
        node.serves = True
    return stops


def report(load, received, stops):
    lost = [task for task in load.accepted if task not in received]
    doubled = [task for task, all in received.items() if len(all) > 1]
    times = sorted(end - began for began, end, _ in load.answers)
    print(f"{len(load.accepted)} accepted, {len(lost)} lost, {len(doubled)} with a second webhook-id or result,"
          f" refused: {dict(load.refused) or 0}; 202 p50 {times[len(times) // 2] * 1e3:.0f} ms,"
          f" p99 {times[len(times) * 99 // 100] * 1e3:.0f} ms, {times[-1] * 1e3:.0f} ms at most")
    longest = sorted(
        max((end - began for began, end, node in load.answers if node is not halted and began < until and end > since),
            default=0)
        for since, until, halted in stops
    )
    if stops:
        print(f"longest 202 of the others in each of {len(stops)} stops:",
              " ".join(f"{time * 1e3:.0f}" for time in longest), "ms")
    return not (lost or doubled or load.refused)


def main():
    mode, store, first, second = sys.argv[1:5]
    receiver = Receiver()
    with tempfile.TemporaryDirectory(dir=os.environ.get("MEASURE_DIR")) as folder:
        nodes = []
        for number in range(3):
            home = f"{folder}/{number}"
            os.mkdir(home)
            nodes.append(Node(home, f"{folder}/key", store))
            nodes[-1].start(first)
        load = Load(nodes, f"http://127.0.0.1:{receiver.server_port}/callback")
        time.sleep(3)
        stops = []
        if mode == "stops":
            stops = stop(nodes, int(second))
        else:
            for node in nodes:
                node.replace(second)
                time.sleep(2)
        load.end()
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and any(task not in receiver.received for task in load.accepted):
            time.sleep(0.2)
        is_good = report(load, receiver.received, stops)
        for node in nodes:
            node.process.terminate()
        for node in nodes:
            node.process.wait()
    sys.exit(not is_good)


main()
