"""The API as a process: listens, says when it is ready, and stops without cutting anybody off."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address

import uvicorn

from collector.api.app import Settings, create_app
from protocol.address import format_address

_LOG = logging.getLogger(__name__)
_PATIENCE_S = 3.0  # for requests that are under way
_GOODBYE_S = 5
_GARBAGE = (20_000, 20, 20)


class CannotListen(RuntimeError):
    """The address cannot be had; the text says why."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where it listens, and what it serves."""

    listen: tuple[str, int]
    settings: Settings


async def serve(options: ServerOptions) -> None:
    """Serve until SIGTERM or SIGINT: then streams end, requests that are under way are answered, and no more."""
    app = create_app(options.settings)
    endpoint = _bound(options.listen)
    # What is loaded stays: looking at it again and again for garbage would hold up answers.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GARBAGE)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=_GOODBYE_S,
        proxy_headers=False,
        server_header=False,
        date_header=False,
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    server = _Server(config)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        app.state.context.watcher.stop()
        server.should_exit = True
        loop.call_later(_PATIENCE_S, app.state.context.readers.stop)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    await server.serve(sockets=[endpoint])
    _LOG.info("api stopped")


class _Server(uvicorn.Server):
    """One that says when it is ready, and leaves signals to us."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for endpoint in sockets or []:
            _LOG.info("api ready url=http://%s", format_address(*endpoint.getsockname()[:2]))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def is_loopback(address: tuple[str, int]) -> bool:
    """Whether only this machine can reach the address. CannotListen if nobody knows the name."""
    host, port = address
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise CannotListen(f"cannot listen on {format_address(host, port)}: {why}") from error
    return all(ip_address(str(resolved[0]).partition("%")[0]).is_loopback for *_, resolved in found)


def _bound(address: tuple[str, int]) -> socket.socket:
    host, port = address
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Said to be TCP, connections send at once; else an answer waits 40 ms for the acknowledgement of its head.
        endpoint = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        endpoint.bind((host, port))
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise CannotListen(f"cannot listen on {format_address(host, port)}: {why}") from error
    return endpoint
