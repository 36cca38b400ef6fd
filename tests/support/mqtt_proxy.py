"""A TCP proxy between the gateway and its broker that loses acknowledgements and breaks connections on demand."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

_PUBCOMP = 7


class MqttProxy:
    """Stands where the gateway looks for the broker."""

    version = "5"

    def __init__(self, broker_port: int) -> None:
        self._broker_port = broker_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.drop_pubcomps = False
        self.drop_upwards = False
        self.dropped = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def is_ready(self) -> bool:
        return True

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Break every connection."""
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._open.clear()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(("127.0.0.1", self._broker_port))
                self._open += [client, broker]
                threading.Thread(target=self._pump_up, args=(client, broker), daemon=True).start()
                threading.Thread(target=self._pump_down, args=(broker, client), daemon=True).start()

    def _pump_up(self, client: socket.socket, broker: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if self.drop_upwards:
                    self.dropped += 1
                else:
                    broker.sendall(data)

    def _pump_down(self, broker: socket.socket, client: socket.socket) -> None:
        rest = b""
        with suppress(OSError):
            while data := broker.recv(65536):
                packets, rest = _split(rest + data)
                for packet in packets:
                    if self.drop_pubcomps and packet[0] >> 4 == _PUBCOMP:
                        self.dropped += 1
                    else:
                        client.sendall(packet)


def _split(data: bytes) -> tuple[list[bytes], bytes]:
    """(whole MQTT packets, what is left)."""
    packets = []
    while len(data) >= 2:
        digits = next((count for count in range(1, 5) if data[count : count + 1] < b"\x80"), 4)
        end = 1 + digits
        size = sum((byte & 0x7F) << 7 * index for index, byte in enumerate(data[1:end]))
        if len(data) < end + size:
            break
        packets.append(data[: end + size])
        data = data[end + size :]
    return packets, data
