"""A server that remembers what it was told, and answers as a test wants it to; and one whose answers have no end."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

DROP = 0  # instead of a status: the connection is closed without an answer
LOOPBACK = "127.0.0.1"


class Received(NamedTuple):
    """A request, and what was answered."""

    path: str
    content_type: str
    body: bytes
    status: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = Callable[[int, Received], int]


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever was killed has not said goodbye."""


class RecordingServer:
    """On a free port, for as long as it is entered. `answer` says the status for the n-th request, from 0 on."""

    def __init__(self, answer: Answer | None = None, headers: dict[str, str] | None = None) -> None:
        self.answer: Answer = answer or (lambda count, received: 200)
        self.received: list[Received] = []
        self._turn = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status = outer._take(Received(self.path, self.headers["content-type"], body, 200))
                if status == DROP:
                    self.close_connection = True
                    return
                text = b"this is why" if status >= 300 else b""
                self.send_response(status)
                self.send_header("content-length", str(len(text)))
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *arguments: object) -> None:
                """Nobody reads it."""

        self._server = _Server((LOOPBACK, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._server.server_port}"

    @property
    def taken(self) -> list[Received]:
        """What was answered with yes."""
        return [each for each in self.received if each.status == 200]

    def _take(self, received: Received) -> int:
        with self._turn:
            status = self.answer(len(self.received), received)
            self.received.append(received._replace(status=status))
            return status

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class UnendingServer:
    """Begins to answer as it was told, and goes on with pieces, one each `every_s`, until nobody listens any more."""

    def __init__(self, beginning: bytes, piece: bytes = b"x", every_s: float = 0.02) -> None:
        self.asked = 0
        self.sent_bytes = 0
        self._is_over = threading.Event()
        outer = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.recv(1 << 16)
                outer.asked += 1
                self.request.sendall(beginning)
                while not outer._is_over.wait(every_s):
                    self.request.sendall(piece)
                    outer.sent_bytes += len(piece)

        class Server(socketserver.ThreadingTCPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                """Nobody listens any more."""

        self._server = Server((LOOPBACK, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
