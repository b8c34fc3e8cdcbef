#!/usr/bin/env python3
"""Submits a dispatch, follows its events and prints the result. Standard library only, Python 3.9 or newer.

    target/release/forge-bridge dev          # in another terminal
    python3 examples/callers/dispatch.py "Hello"

BRIDGE_URL (http://127.0.0.1:7420) and BRIDGE_TOKEN select another bridge. CALLBACK_URL and WEBHOOK_SECRET (whsec_…)
request a signed callback, for example to examples/receivers/receive.py.
"""

import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid

URL = os.environ.get("BRIDGE_URL", "http://127.0.0.1:7420")
TOKEN = os.environ.get("BRIDGE_TOKEN")


def call(method, path, body=None, accept="application/json"):
    request = urllib.request.Request(URL + path, method=method)
    request.add_header("Accept", accept)
    if TOKEN:
        request.add_header("Authorization", f"Bearer {TOKEN}")
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    return urllib.request.urlopen(request, timeout=60)


def submit(body):
    """Repeats the request until it is answered: the task id makes that safe, a known one is answered from the record."""
    for attempt in range(8):
        try:
            with call("POST", "/api/v2/dispatch", body) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            # 429 and 503 are temporary and name a time; every other status is about this request.
            if error.code not in (429, 503):
                sys.exit(f"{error.code}: {error.read().decode()}")
            wait = float(error.headers.get("Retry-After") or 2**attempt)
        except (OSError, http.client.HTTPException) as error:  # not connected, or the answer was lost
            print(f"no answer: {error}", file=sys.stderr)
            wait = 2**attempt
        time.sleep(min(wait, 30))
    sys.exit("the bridge does not answer")


def events(dispatch):
    """Every event once: a broken stream continues after the last cursor."""
    after, failures = None, 0
    while failures < 8:
        query = f"?after={after}" if after else ""
        try:
            path = f"/api/v2/dispatch/{dispatch}/events{query}"
            with call("GET", path, accept="application/x-ndjson") as stream:
                for line in stream:
                    if not line.strip():
                        continue  # heartbeat
                    event = json.loads(line)
                    if "id" not in event:
                        continue  # a line about the stream itself
                    after, failures = event["id"], 0
                    yield event
                    if event["type"] in ("execution.completed", "execution.failed"):
                        return
        except urllib.error.HTTPError as error:
            if error.code not in (429, 503):
                sys.exit(f"{error.code}: {error.read().decode()}")
        except (OSError, http.client.HTTPException):
            pass
        failures += 1
        time.sleep(0.5 * failures)
    sys.exit("the event stream does not continue")


def main():
    callback = os.environ.get("CALLBACK_URL")
    body = {
        "taskId": os.environ.get("TASK_ID", f"python-{uuid.uuid4()}"),
        "agentId": "example",
        "message": sys.argv[1] if len(sys.argv) > 1 else "Hello",
        "model": "stream:3",  # of the echo adapter
        "callbackUrl": callback,
    }
    if callback and os.environ.get("WEBHOOK_SECRET"):
        body["callback"] = {"secret": os.environ["WEBHOOK_SECRET"]}
    accepted = submit(body)
    print(f"{accepted['dispatchId']} on {accepted['provider']}")
    for event in events(accepted["dispatchId"]):
        print(event["type"], json.dumps(event.get("data", {})))
    with call("GET", f"/api/v2/dispatch/{accepted['dispatchId']}") as answer:
        result = json.load(answer)["result"]
    print(result["status"], result.get("output") or result.get("error"))
    return 0 if result["status"] == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
