"""What the contenders send to: the gateway and its broker, an HTTP server that takes spans, Redis if it is installed.

What arrives is kept, so that it can be counted: an event counts once, however often it came. Our batches are also
acknowledged, as whoever writes them to the log does, since their agent waits for it.
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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from protocol.events import TaskBegun, TaskEnded
from protocol.topics import down_topic
from protocol.wire.answers import MOST_EARLY, Logged, encode_answer
from protocol.wire.batch import decode_batch, read_header, unframe
from protocol.wire.compression import READABLE
from threadline.lab import GatewayService, Mosquitto, Service, free_port

_TOPICS = ("provlight/+", "tl/+/+/up")
_QUIET_S = 1.0
_SUBSCRIBE_S = 10.0


class Acknowledged:
    """Which batches of one epoch have come, and the answer that says so."""

    def __init__(self, nonce: int) -> None:
        self._nonce = nonce
        self._next_seq = 0
        self._early: set[int] = set()

    def take(self, seq: int, next_seq: int) -> Logged:
        """A batch has come, whether for the first time or again, in its turn or too soon."""
        self._early.update(range(seq, next_seq))
        while self._next_seq in self._early:
            self._early.remove(self._next_seq)
            self._next_seq += 1
        self._early = {each for each in self._early if each > self._next_seq}
        waiting = sum(1 << each - self._next_seq - 1 for each in self._early)
        return Logged(self._nonce, self._next_seq, waiting % 2**MOST_EARLY, sum(1 << codec for codec in READABLE))


class Arrivals:
    """A subscriber to what the MQTT-SN contenders publish."""

    def __init__(self, port: int) -> None:
        self._payloads: dict[str, list[bytes]] = {}
        self._epochs: dict[tuple[str, int], Acknowledged] = {}
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
        payload = bytes(message.payload)
        self._payloads.setdefault(message.topic, []).append(payload)
        levels = message.topic.split("/")
        if levels[0] == "tl":
            agent = levels[2]
            header, _ = read_header(unframe(payload, agent)[1])
            epoch = self._epochs.setdefault((agent, header.nonce), Acknowledged(header.nonce))
            client.publish(down_topic(agent), encode_answer(epoch.take(header.seq, header.next_seq), agent), qos=1)

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


class SnServer:
    """Mosquitto, our gateway, and a subscriber."""

    def __init__(self, folder: Path) -> None:
        self._broker = Mosquitto(folder)
        self._gateway = GatewayService(folder, self._broker)

    @property
    def address(self) -> tuple[str, int]:
        return self._gateway.address

    def __enter__(self) -> Self:
        self._broker.start()
        self._gateway.start()
        self.arrivals = Arrivals(self._broker.port).__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.arrivals.__exit__()
        self._gateway.stop()
        self._broker.stop()


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
