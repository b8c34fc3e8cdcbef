#!/usr/bin/env python3
"""Plays an outage and answers it with the commands alone, as docs/operate.md has them.

    cargo build --release && tests/measure/outage.py target/release/forge-bridge --minutes 9
    tests/measure/outage.py target/release/forge-bridge --hold

One receiver refuses connections, a second one answers 422, and the program of one adapter ends at each start. Meanwhile
3,000 dispatches with callbacks are accepted: 300 become dead letters, beside 20 older ones, and a few wait for the adapter.
Each command and its answer are printed and checked: what waits, and why; try it now; send again only what failed since
then; and that nothing is lost, compared with what both receivers accepted. Ends with 1 if a step does not hold.

`--hold` stops before the answers and prints a line of JSON, for tests/browser/outage.mjs. POST to its `control` repairs
everything, GET counts; the script ends with its input, or with Ctrl-C.

A measurement, not a check. Needs Linux and the echo adapter beside the program. Everything is on loopback.
"""

import argparse
import base64
import collections
import hashlib
import hmac
import http.client
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

TOKEN, SECRET = "outage-token-outage-token-000001", base64.b64encode(b"outage-secret-outage-secret").decode()
ADAPTER = "python-echo"
DISPATCHES, OLDER = 3000, 20
EXAMPLE = pathlib.Path(__file__).parents[2] / f"plugins/examples/{ADAPTER}/forge-adapter-{ADAPTER}"
# Ends the program while the file exists.
BREAKS = """#!/usr/bin/env python3
import os, sys, threading, time
def watch():
    while not os.path.exists({file!r}):
        time.sleep(0.1)
    print("the key of the service is missing", file=sys.stderr, flush=True)
    os._exit(1)
watch() if os.path.exists({file!r}) else threading.Thread(target=watch, daemon=True).start()
"""


class Receiver(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, port=0, status=200):
        super().__init__(("127.0.0.1", port), Handler)
        self.status, self.received, self.lock = status, collections.defaultdict(set), threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.server.status != 200:
            return self.answer(self.server.status, {"error": "unknown member: usage"})
        id, at = self.headers["webhook-id"], self.headers["webhook-timestamp"]
        signed = hmac.new(base64.b64decode(SECRET), f"{id}.{at}.".encode() + body, hashlib.sha256).digest()
        if f"v1,{base64.b64encode(signed).decode()}" not in self.headers["webhook-signature"].split() or int(at) < time.time() - 300:
            return self.answer(401, {})
        with self.server.lock:
            self.server.received[json.loads(body).get("taskId")].add(id)
        self.answer(200, {})

    def answer(self, status, value):
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


class Control(Handler):
    def do_POST(self):
        self.server.outage.repair()
        self.do_GET()

    def do_GET(self):
        self.answer(200, self.server.outage.counts())


class Outage:
    def __init__(self, program, home):
        self.program, self.broken = program, f"{home}/broken"
        self.accepted, self.waiting = [], 0
        os.mkdir(f"{home}/plugins")
        plugin = f"{home}/plugins/forge-adapter-{ADAPTER}"
        pathlib.Path(plugin).write_text(BREAKS.format(file=self.broken) + EXAMPLE.read_text())
        shutil.copymode(EXAMPLE, plugin)
        self.environment = {
            "HOME": home, "PATH": os.environ["PATH"], "BRIDGE_LISTEN": "127.0.0.1:0", "BRIDGE_DATA_DIR": f"{home}/data",
            "BRIDGE_SECRET_KEY_FILE": f"{home}/secret.key", "BRIDGE_ADAPTERS": f"echo,{ADAPTER}",
            "BRIDGE_PLUGIN_PATH": f"{home}/plugins,{os.path.dirname(program)}", "BRIDGE_CALLBACK_ALLOW": "loopback",
            "BRIDGE_CALLBACK_SECRETS": f"whsec_{SECRET}", "BRIDGE_SIGNALS_LISTEN": "off",
            "BRIDGE_DRAIN_ACCEPT": "0s", "BRIDGE_DRAIN_GRACE": "1s",
        }
        self.process = subprocess.Popen([program], env={**self.environment, "BRIDGE_TOKENS": TOKEN},
                                        stderr=subprocess.PIPE, text=True, cwd=home)
        for line in self.process.stderr:
            if found := re.search(r"listening on (http://127\.0\.0\.1:(\d+))", line):
                self.url, self.port = found[1], int(found[2])
                break
        else:
            sys.exit("the bridge did not start")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        self.environment |= {"BRIDGE_URL": self.url, "BRIDGE_TOKEN": TOKEN}
        self.refusing, up = Receiver(status=422), Receiver()
        # A port that was listened at and is closed refuses connections.
        self.down, self.recovered = up.url, None
        up.shutdown()
        up.server_close()

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(method, path, body and json.dumps(body),
                           {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        status, value = answer.status, json.loads(answer.read())
        connection.close()
        return status, value

    def post(self, task, receiver, provider="echo"):
        status, answer = self.ask("POST", "/api/v2/dispatch", {
            "taskId": task, "agentId": "shop", "message": "a few words", "provider": provider, "callbackUrl": f"{receiver}/results"})
        assert status == 202, (task, status, answer)

    def health(self):
        return self.ask("GET", "/api/health")[1]

    def play(self, minutes):
        until(lambda: self.health()["adapters"][ADAPTER]["status"] == "healthy")
        for number in range(OLDER):
            self.post(f"older-{number}", self.refusing.url)
        until(lambda: self.health()["deliveries"] == {"pending": 0, "dead": OLDER})
        # The console has the time to the minute.
        time.sleep(60.1 - time.time() % 60)
        self.since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        pathlib.Path(self.broken).touch()
        until(lambda: self.health()["adapters"][ADAPTER]["status"] == "offline")
        began = time.monotonic()
        for number in range(DISPATCHES):
            # Those for the adapter come first: after a minute (dispatch.offline_grace) they are answered 503.
            refused, pinned = number % 10 == 5, number < 60
            task = f"order-{number}"
            self.post(task, self.refusing.url if refused else self.down, ADAPTER if pinned and not refused else "echo")
            self.accepted.append(task)
            self.waiting += pinned and not refused
            time.sleep(max(0, began + minutes * 54 * number / DISPATCHES - time.monotonic()))
        time.sleep(max(0, began + minutes * 60 - time.monotonic()))
        until(lambda: self.health()["deliveries"] == {"pending": DISPATCHES * 9 // 10 - self.waiting, "dead": DISPATCHES // 10 + OLDER})
        until(lambda: self.health()["adapters"][ADAPTER].get("quarantine"))
        print(f"down for {time.monotonic() - began:.0f} s, {len(self.accepted):,} accepted meanwhile", flush=True)

    def repair(self):
        if self.recovered is None:
            self.refusing.status = 200
            os.remove(self.broken)
            self.recovered = Receiver(int(self.down.rsplit(":", 1)[1]))

    def counts(self):
        both = [one.received for one in (self.refusing, self.recovered) if one]
        of = lambda task: set().union(*(received.get(task, ()) for received in both))
        ids = [of(task) for task in self.accepted]
        return {"accepted": len(ids), "lost": sum(not id for id in ids), "doubled": sum(len(id) > 1 for id in ids),
                "older": sum(f"older-{number}" in received for number in range(OLDER) for received in both)}

    def cli(self, *words, shows=()):
        """Runs a command, prints it with the beginning of its output, and checks that this has the patterns."""
        ran = subprocess.run([self.program, *words], env=self.environment, text=True, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
        lines = ran.stdout.splitlines()
        more = f"\n  … {len(lines) - 8} lines" if len(lines) > 8 else ""
        if "--json" not in words:
            print(f"$ forge-bridge {' '.join(words)}", *(f"  {line[:170]}" for line in lines[:8]), sep="\n", end=f"{more}\n", flush=True)
        assert ran.returncode == 0, (words, ran.stdout)
        for pattern in shows:
            assert re.search(pattern, ran.stdout), f"{' '.join(words)} does not show {pattern!r}:\n{ran.stdout[:3000]}"
        return ran.stdout

    def listed(self, kind, *words):
        pages = self.cli(kind, "list", *words, "--all", "--json").splitlines()
        return [one for page in pages for one in json.loads(page)[kind]]

    def answer(self):
        host, down = self.refusing.url.removeprefix("http://"), self.down.removeprefix("http://")
        failed, pending = DISPATCHES // 10, DISPATCHES * 9 // 10 - self.waiting
        # What waits, and why.
        self.cli("health", shows=[f"{pending} pending, {failed + OLDER} dead", rf"{ADAPTER} +offline .*quarantined"])
        self.cli("deliveries", "destinations", shows=[rf"{self.down} +(open|half-open) .*Connection refused"])
        self.cli("deliveries", "list", "--status", "pending", "--limit", "3", shows=[rf"pending .*{down}"])
        assert len(self.listed("deliveries", "--status", "pending", "--host", down)) == pending
        dead = self.listed("deliveries", "--status", "dead", "--since", self.since)
        assert len(dead) == failed, len(dead)
        self.cli("deliveries", "list", "--status", "dead", "--limit", "3", shows=[f"dead .*{host}"])
        self.cli("deliveries", "show", dead[0]["id"], shows=[" 422", "unknown member: usage"])
        self.cli("dispatches", "list", "--status", "queued", shows=[f"{ADAPTER} is offline: quarantined .*ended with exit code 1"])
        assert len(self.listed("dispatches", "--status", "queued")) == self.waiting
        self.cli("adapters", "inspect", ADAPTER, shows=["health +offline", "quarantined .*ended with exit code 1"])
        self.repair()
        print("(the receivers and the program are repaired)")
        # Make it go now.
        self.cli("adapters", "reload", ADAPTER)
        self.cli("deliveries", "destinations", "retry", self.down, shows=["circuit closed, everything due is sent now"])
        # Send again only what failed since then.
        self.cli("callback", "test", f"{self.refusing.url}/results")
        only = ("--status", "dead", "--host", host, "--since", self.since)
        self.cli("deliveries", "retry", *only, "--dry-run", shows=[f"{failed} would be sent again"])
        self.cli("deliveries", "retry", *only, "--yes", shows=[f"{failed} scheduled for a retry"])
        began = time.monotonic()
        until(lambda: self.health()["deliveries"] == {"pending": 0, "dead": OLDER})
        until(lambda: len(self.listed("deliveries", "--status", "delivered", "--since", self.since)) == DISPATCHES)
        print(f"({time.monotonic() - began:.1f} s later)")
        # Nothing is lost.
        self.cli("health", shows=[f"0 pending, {OLDER} dead", f"{ADAPTER} +healthy"])
        self.cli("deliveries", "destinations")
        for status in ("queued", "running", "error"):
            assert not self.listed("dispatches", "--status", status), status
        delivered = {one["taskId"] for one in self.listed("deliveries", "--status", "delivered", "--since", self.since)}
        assert delivered == set(self.accepted)
        self.cli("store", "check", shows=["all is well", "0 of them unfinished", "0 callbacks pending"])
        counts = self.counts()
        print(f"{counts['accepted']:,} accepted, {counts['lost']} lost, {counts['doubled']} with two webhook-ids, "
              f"{failed} dead letters sent again, {counts['older']} of {OLDER} older ones")
        assert not (counts["lost"] or counts["doubled"] or counts["older"])


def until(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", type=os.path.abspath)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--hold", action="store_true", help="stop before the answers")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("MEASURE_DIR")) as home:
        outage = Outage(given.program, home)
        try:
            outage.play(given.minutes)
            if given.hold:
                control = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Control)
                control.outage = outage
                threading.Thread(target=control.serve_forever, daemon=True).start()
                print(json.dumps({
                    "url": outage.url, "token": TOKEN, "adapter": ADAPTER, "down": outage.down, "refusing": outage.refusing.url,
                    "since": outage.since, "pending": DISPATCHES * 9 // 10 - outage.waiting, "waiting": outage.waiting,
                    "failed": DISPATCHES // 10, "older": OLDER, "control": f"http://127.0.0.1:{control.server_port}"}), flush=True)
                sys.stdin.read()
            else:
                outage.answer()
        except KeyboardInterrupt:
            pass
        finally:
            outage.process.terminate()
            outage.process.wait()


main()
