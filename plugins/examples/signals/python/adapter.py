"""Reports the calls of AI models to the local agent, and asks whether a call is blocked. Whatever fails lets the tool continue."""

import base64
import hashlib
import hmac
import http.client
import json
import os
import socket
import sys
import threading
import time
from datetime import datetime, timezone
from urllib.parse import urlsplit

LONGEST_MS = 3000


class ForgAdapter:
    def __init__(self, adapter, user_id=None, environment=os.environ):
        self.adapter = adapter
        self.user_id = user_id
        port = environment.get("FORG_PORT", "6247")
        self.agent = urlsplit(environment.get("FORG_AGENT_URL") or f"http://127.0.0.1:{port}")
        self.timeout = min(int(environment.get("FORG_EMIT_TIMEOUT") or LONGEST_MS), LONGEST_MS) / 1000
        self.session = None
        id, key = environment.get("FORG_SESSION_ID"), environment.get("FORG_SESSION_KEY")
        if id and key:
            self.session = (id, decoded(key))

    def start_session(self):
        """Starts a session. The first call of `emit` does so too."""
        if self.session is None:
            self._open("start", lambda: self._start(self._deadline()))

    def emit(self, model, tokens_in, tokens_out, latency_ms=None, cost_usd=None, error_code=None, project_id=None):
        """Reports a call of a model; returns (blocked, message)."""
        record = {
            "adapter": self.adapter, "ts": now(), "model": model, "tokens_in": tokens_in, "tokens_out": tokens_out,
            "latency_ms": latency_ms, "cost_usd": cost_usd, "error_code": error_code, "project_id": project_id,
        }

        def report():
            deadline = self._deadline()
            if self.session is None:
                self._start(deadline)
            status, answer = self._signed(record, deadline)
            if status == 401:
                self._start(deadline)
                status, answer = self._signed(record, deadline)
            if status != 200:
                raise OSError(f"status {status}")
            return json.loads(answer)

        answer = self._open("emit", report)
        answer = answer if isinstance(answer, dict) else {}
        return answer.get("blocked") is True, answer.get("message")

    def end_session(self):
        if self.session is not None:
            record = {"adapter": self.adapter, "ts": now(), "hook": "SessionEnd"}
            self._open("end", lambda: self._signed(record, self._deadline()))
            self.session = None

    def _open(self, what, work):
        """Fails open: an error is a warning."""
        try:
            return work()
        except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException) as error:
            print(f"[forg] {what} failed, the tool continues: {error!r}", file=sys.stderr)

    def _deadline(self):
        return time.monotonic() + self.timeout

    def _start(self, deadline):
        self.session = None
        body = json.dumps({"adapter": self.adapter, "user_id": self.user_id}).encode()
        status, answer = self._post("/session/start", body, {}, deadline)
        if status != 200:
            raise OSError(f"no session: status {status}")
        started = json.loads(answer)
        self.session = (started["session_id"], decoded(started["session_key"]))

    def _signed(self, record, deadline):
        """Signs the bytes that are sent."""
        id, key = self.session
        body = json.dumps({**record, "session_id": id}).encode()
        digits = hmac.new(key, body, hashlib.sha256).hexdigest()
        return self._post("/emit", body, {"X-Forg-Signature": f"sha256={digits}"}, deadline)

    def _post(self, path, body, headers, deadline):
        """One request without proxies and redirects. The timeout of a socket is for one read: the timer ends the whole."""
        left = max(deadline - time.monotonic(), 0.001)
        connection = http.client.HTTPConnection(self.agent.hostname, self.agent.port, timeout=left)
        timer = threading.Timer(left, lambda: connection.sock and connection.sock.shutdown(socket.SHUT_RDWR))
        timer.daemon = True
        timer.start()
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
            response = connection.getresponse()
            answer = response.read(65536)
            if time.monotonic() >= deadline:
                raise TimeoutError(f"no answer within {self.timeout} s")
            return response.status, answer
        finally:
            timer.cancel()
            connection.close()


def decoded(key):
    """Bytes of a key in either alphabet of base64, with or without padding."""
    return base64.urlsafe_b64decode(key.translate(str.maketrans("+/", "-_")).rstrip("=") + "==")


def now():
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
