import hashlib
import hmac
import json
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from adapter import ForgAdapter

KEY = bytes(range(32))
SESSION = {
    "session_id": "sess_1", "session_key": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "expires_at": "2030-01-01T00:00:00Z",
}


def agent(answer):
    """An agent that answers each signal with this text, and its list of what it received."""
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, self.headers["X-Forg-Signature"], body))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(SESSION).encode() if self.path == "/session/start" else answer)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
    return server, {"FORG_AGENT_URL": f"http://127.0.0.1:{server.server_port}"}, received


def stop(server):
    server.shutdown()
    server.server_close()


class Signals(unittest.TestCase):
    def test_a_signal_has_the_fields_of_the_protocol_and_is_signed_over_its_bytes(self):
        server, environment, received = agent(b'{"blocked": false}')
        forg = ForgAdapter("a", environment=environment)
        self.assertEqual(forg.emit("claude-opus-4-5", 100, 50), (False, None))
        forg.end_session()
        stop(server)
        self.assertEqual([path for path, _, _ in received], ["/session/start", "/emit", "/emit"])
        for _, signature, body in received[1:]:
            self.assertEqual(signature, "sha256=" + hmac.new(KEY, body, hashlib.sha256).hexdigest())
        usage, end = (json.loads(body) for _, _, body in received[1:])
        fields = ("adapter", "model", "tokens_in", "tokens_out", "session_id")
        self.assertEqual([usage[name] for name in fields], ["a", "claude-opus-4-5", 100, 50, "sess_1"])
        self.assertEqual((end["hook"], end["session_id"]), ("SessionEnd", "sess_1"))

    def test_only_the_boolean_true_blocks(self):
        for answer, blocked in ((b'{"blocked": true, "message": "m"}', True), (b'{"blocked": "true"}', False), (b"<p>", False)):
            server, environment, _ = agent(answer)
            self.assertEqual(ForgAdapter("a", environment=environment).emit("m", 1, 1)[0], blocked, answer)
            stop(server)

    def test_without_an_agent_the_tool_continues(self):
        server, environment, _ = agent(b"")
        stop(server)
        self.assertEqual(ForgAdapter("a", environment=environment).emit("m", 1, 1), (False, None))
