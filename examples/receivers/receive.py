#!/usr/bin/env python3
"""Receives callbacks and verifies their signature (Standard Webhooks). Standard library only, Python 3.9 or newer.

    export WEBHOOK_SECRET=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw    # for this try only: generate your own
    python3 examples/receivers/receive.py                             # listens on 127.0.0.1:7422
    CALLBACK_URL=http://127.0.0.1:7422/callback python3 examples/callers/dispatch.py "Hello"

The last line runs in another terminal with the same WEBHOOK_SECRET and a bridge that may call loopback addresses
(`forge-bridge dev`, or callback.allow). A bridge in operation signs with the secret that `forge-bridge secrets` shows.

    python3 examples/receivers/receive.py --self-test
"""

import base64
import binascii
import hashlib
import hmac
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Refuses recorded requests that are sent again later.
TOLERANCE_SECONDS = 5 * 60
# Above the bridge's limit for an output within a result (dispatch.output_inline_bytes, 1 MiB).
LIMIT_BYTES = 8 << 20


def verify(secret, headers, body, now=None):
    """Returns None, or the reason why the request is not from the bridge. `body` is raw, before any parsing."""
    key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    identifier, timestamp = headers.get("webhook-id"), headers.get("webhook-timestamp", "")
    if not identifier or not (timestamp.isascii() and timestamp.isdigit()):
        return "webhook-id or webhook-timestamp is missing or malformed"
    if abs((time.time() if now is None else now) - int(timestamp)) > TOLERANCE_SECONDS:
        return "webhook-timestamp is too old or in the future"
    content = b".".join([identifier.encode(), timestamp.encode(), body])
    expected = hmac.new(key, content, hashlib.sha256).digest()
    # Several signatures, separated by spaces, while a secret is rotated: one of them has to fit.
    for signature in headers.get("webhook-signature", "").split(" "):
        version, _, text = signature.partition(",")
        try:
            given = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            continue
        # In constant time, so that the response time reveals nothing about the expected value.
        if version == "v1" and hmac.compare_digest(given, expected):
            return None
    return "no signature fits"


class Receiver(BaseHTTPRequestHandler):
    secret = ""
    # In operation: a table with a unique key, written in the transaction that processes the result.
    seen = set()

    def do_POST(self):
        length = int(self.headers.get("Content-Length", 0))
        if length > LIMIT_BYTES:
            return self.answer(413)
        body = self.rfile.read(length)
        problem = verify(self.secret, self.headers, body)
        if problem:
            print(f"refused: {problem}", file=sys.stderr)
            return self.answer(401)
        # The same delivery can come more than once; the webhook-id stays the same.
        identifier = self.headers["webhook-id"]
        if identifier not in self.seen:
            self.seen.add(identifier)
            result = json.loads(body)
            print(result["taskId"], result["status"], result.get("output") or result.get("error"), flush=True)
        # 2xx ends the delivery; 400, 410, 413 and 422 end it as a dead letter; all else is retried.
        self.answer(204)

    def answer(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def self_test():
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    # The example of the Standard Webhooks reference libraries: known id, time, body and signature.
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    body, now = b'{"test": 2432232314}', 1614265330
    assert verify(secret, headers, body, now) is None
    assert verify(secret, headers, body + b" ", now) == "no signature fits"
    assert verify("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", headers, body, now) == "no signature fits"
    rotated = {**headers, "webhook-signature": "v1,AAAA v2,x " + headers["webhook-signature"]}
    assert verify(secret, rotated, body, now) is None
    assert verify(secret, {**headers, "webhook-id": "other"}, body, now) == "no signature fits"
    assert "too old" in verify(secret, headers, body, now + TOLERANCE_SECONDS + 1)
    assert "malformed" in verify(secret, {**headers, "webhook-timestamp": "x"}, body, now)
    assert verify(secret, {**headers, "webhook-signature": "v1,é"}, body, now) == "no signature fits"
    print("ok")


def main():
    if "--self-test" in sys.argv:
        return self_test()
    Receiver.secret = os.environ.get("WEBHOOK_SECRET") or sys.exit("set WEBHOOK_SECRET to whsec_… (see this file)")
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "7422"))), Receiver)
    print(f"listening on http://127.0.0.1:{server.server_port}/callback", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
