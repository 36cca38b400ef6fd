"""The least that a gateway has to do, by itself: echo a datagram, and publish a message with the MQTT library."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import threading
import time
from multiprocessing.queues import Queue
from typing import Any, cast

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

_SOCKET_BUFFER_BYTES = 4 * 1024 * 1024
_SPAWN = multiprocessing.get_context("spawn")


class _Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._transport.sendto(data, addr)


def _serve_echo(ready: Queue[tuple[str, int]]) -> None:
    async def serve() -> None:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
        sock.bind(("127.0.0.1", 0))
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(_Echo, sock=sock)
        ready.put(transport.get_extra_info("sockname"))
        await asyncio.Event().wait()

    asyncio.run(serve())


class EchoServer:
    """A bare asyncio UDP echo server in a process of its own."""

    def __enter__(self) -> EchoServer:
        ready: Queue[tuple[str, int]] = _SPAWN.Queue()
        self._process = _SPAWN.Process(target=_serve_echo, args=(ready,), daemon=True)
        self._process.start()
        self.address = ready.get(timeout=30)
        assert self._process.pid is not None
        self.pid = self._process.pid
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()


def _client(port: int) -> paho.Client:
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    client.max_inflight_messages_set(0)
    client.connect("127.0.0.1", port)
    return client


def _publish_in_one_thread(port: int, qos: int, window: int, messages: int, payload: bytes) -> float:
    client = _client(port)
    published = 0

    def on_publish(*_: object) -> None:
        nonlocal published
        published += 1

    client.on_publish = on_publish
    while not client.is_connected():
        client.loop(0.1)
    sent = 0
    start = time.process_time()
    while published < messages:
        while sent < messages and sent - published < window:
            client.publish("bench/up", payload, qos)
            sent += 1
        client.loop(0.1)
    return time.process_time() - start


def _publish_with_loop_thread(port: int, qos: int, window: int, messages: int, payload: bytes) -> float:
    client = _client(port)
    room = threading.Semaphore(window)
    client.on_publish = lambda *_: room.release()
    client.loop_start()
    while not client.is_connected():
        time.sleep(0.01)
    start = time.process_time()
    for _ in range(messages):
        room.acquire()
        client.publish("bench/up", payload, qos)
    for _ in range(window):
        room.acquire()
    seconds = time.process_time() - start
    client.loop_stop()
    return seconds


def _publish(answer: Queue[float], *arguments: Any) -> None:
    answer.put(min(_publish_in_one_thread(*arguments), _publish_with_loop_thread(*arguments)))


def bare_publish_us(port: int, qos: int, window: int, messages: int, payload: bytes) -> float:
    """CPU per message of a bare paho publish loop with `window` messages in flight, the cheaper of its two loops."""
    answer: Queue[float] = _SPAWN.Queue()
    process = _SPAWN.Process(target=_publish, args=(answer, port, qos, window, messages, payload), daemon=True)
    process.start()
    seconds = answer.get(timeout=300)
    process.join()
    return seconds / messages * 1e6
