"""A server whose answers a test chooses."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def line(self) -> str:
        return f"{self.method} {self.path}"


@dataclass
class Answer:
    """`cut`: the connection ends before the body is complete. `hold`: it stays open after the body, without an end."""

    status: int = 200
    body: bytes | str | dict[str, Any] | list[Any] = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    hold: bool = False

    def content(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()


class Server:
    def __init__(self, answer: Callable[[Request], Answer]) -> None:
        self.seen: list[Request] = []
        self.released = threading.Event()
        lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, self.path, headers, body)
                with lock:
                    server.seen.append(request)
                    made = answer(request)
                content = made.content()
                self.send_response(made.status)
                for name, value in made.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content) + (1000 if made.cut or made.hold else 0)))
                self.end_headers()
                self.wfile.write(content)
                self.wfile.flush()
                if made.hold:
                    server.released.wait()
                if made.cut or made.hold:
                    self.close_connection = True

            do_GET = do_POST = do_PUT = do_DELETE = do

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def lines(self) -> list[str]:
        return [request.line for request in self.seen]

    def close(self) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()
