"""A receiver of callbacks whose answers a test can change."""

from __future__ import annotations

import http.server
import socket
import threading

from forge_bridge import WebhookError, verify_webhook


def reserve() -> socket.socket:
    """A port that no other process gets, and that refuses connections until a receiver has it."""
    reserved = socket.socket()
    reserved.bind(("127.0.0.1", 0))
    return reserved


def address(of: socket.socket) -> str:
    return f"127.0.0.1:{of.getsockname()[1]}"


class Receiver:
    """Answers each callback with this status and text; with the status 0 it verifies the signature and answers 204 or 401."""

    def __init__(self, reserved: socket.socket, secret: str, status: int = 0, text: str = "") -> None:
        self.status, self.text = status, text
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = receiver.status
                if status == 0:
                    try:
                        verify_webhook(body, dict(self.headers), secret)
                        status = 204
                    except WebhookError:
                        status = 401
                text = receiver.text.encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(reserved.getsockname(), Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = reserved
        self._server.server_activate()
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
