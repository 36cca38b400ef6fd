"""What the contenders send to: the gateway and its broker, an HTTP server that takes spans, Redis if it is installed.

What arrives is kept, so that it can be counted: an event counts once, however often it came. Behind the broker is also
our translator, which writes our batches to a log and acknowledges them.
"""

from __future__ import annotations

import ast
import gzip
import shutil
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from protocol.events import TaskBegun, TaskEnded
from protocol.wire.batch import decode_batch, unframe
from threadline.lab import GatewayService, Mosquitto, Service, TranslatorService, free_port

_TOPICS = ("provlight/+", "tl/+/+/up")
_QUIET_S = 1.0
_SUBSCRIBE_S = 10.0


class Arrivals:
    """A subscriber to what the MQTT-SN contenders publish."""

    def __init__(self, port: int) -> None:
        self._payloads: dict[str, list[bytes]] = {}
        self._last_at = 0.0
        self._subscribed = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        self._client.on_connect = lambda client, *_: client.subscribe([(topic, 2) for topic in _TOPICS])
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = self._take
        self._client.connect("127.0.0.1", port)

    def __enter__(self) -> Self:
        self._client.loop_start()
        assert self._subscribed.wait(_SUBSCRIBE_S), "the broker does not answer"
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _take(self, client: paho.Client, userdata: object, message: paho.MQTTMessage) -> None:
        self._last_at = time.monotonic()
        self._payloads.setdefault(message.topic, []).append(bytes(message.payload))

    def wait_until_quiet(self) -> None:
        while time.monotonic() < self._last_at + _QUIET_S:
            time.sleep(0.05)

    def of(self, client: str) -> list[bytes]:
        """What came on the topic of one client: the one that has its name as a level."""
        topics = [topic for topic in list(self._payloads) if client in topic.split("/")]
        return [payload for topic in topics for payload in self._payloads[topic]]


def provlight_events(payload: bytes, client: str) -> Iterator[str]:
    """The task events in a message of the ProvLight re-creation: one, or a group."""
    message = ast.literal_eval(zlib.decompress(payload).decode())
    for event in message if isinstance(message, list) else [message]:
        if "task_id" in event:
            yield f"{event['task_id']} {event['status']}"


def threadline_events(payload: bytes, client: str) -> Iterator[str]:
    """The task events in a batch."""
    for record in decode_batch(unframe(payload, client)[1], client).records():
        if isinstance(record, TaskBegun | TaskEnded):
            yield f"{record.key} {type(record).__name__}"


EVENTS_IN: dict[str, Callable[[bytes, str], Iterator[str]]] = {
    "provlight": provlight_events,
    "threadline": threadline_events,
}


@contextmanager
def running(service: Service) -> Iterator[None]:
    """A service that is ended though it may not come up, and that does not outlive the benchmark, however that ends.
    Nothing may have started a thread yet."""
    try:
        service.start(apart=True)
        yield
    finally:
        service.stop()


class SnServer:
    """Mosquitto, our gateway and translator, and a subscriber."""

    def __init__(self, folder: Path) -> None:
        self._broker = Mosquitto(folder)
        self._gateway = GatewayService(folder, self._broker)
        self._translator = TranslatorService(folder, self._broker)

    @property
    def address(self) -> tuple[str, int]:
        return self._gateway.address

    def __enter__(self) -> Self:
        """Nothing may have started a thread yet."""
        with ExitStack() as stack:
            for service in (self._broker, self._gateway, self._translator):
                stack.enter_context(running(service))
            self.arrivals = stack.enter_context(Arrivals(self._broker.port))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class SpanSink:
    """An HTTP server that says yes to every export, and keeps it."""

    def __init__(self) -> None:
        self.exports: list[bytes] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _keeping(self.exports))
        self._thread = threading.Thread(target=self._server.serve_forever, name="span-sink", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self._server.server_port

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _keeping(exports: list[bytes]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # so that a connection is used again

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            exports.append(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


class Redis(Service):
    """Where the machine has it."""

    def __init__(self, folder: Path) -> None:
        super().__init__("redis", folder)
        self._port = free_port()

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    @staticmethod
    def path() -> str | None:
        return shutil.which("redis-server")

    def command(self) -> Sequence[str]:
        return [self.path() or "redis-server", "--port", str(self._port), "--bind", "127.0.0.1", "--save", ""]

    def is_ready(self) -> bool:
        with socket.socket() as sock:
            sock.settimeout(1)
            return sock.connect_ex(self.address) == 0
