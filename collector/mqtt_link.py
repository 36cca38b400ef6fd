"""One MQTT connection for a process that asks and tells: it reconnects for ever, and says so while it is away.

Followers hear all of some topics, such as the states of the agents, from the first retained message on. Others listen
to single topics for as long as they wait for an answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import aiomqtt

from collector.side_by_side import side_by_side

_LOG = logging.getLogger(__name__)
_RECONNECT_S = 1.0
_ANSWER_S = 5.0
_MOST_QUEUED = 50_000
_REFUSED = 0x80  # codes from here on
MOST_LISTENERS = 1_000
MOST_TOPICS = MOST_LISTENERS

Hear = Callable[[bytes], None]


class MqttAway(RuntimeError):
    """There is no connection to the MQTT broker just now; the text says where it should be."""


class Busy(RuntimeError):
    """As many as may wait for answers do so already: ask again later."""


class Follower(Protocol):
    """Hears all of some topics. Called on the event loop; must neither wait nor raise."""

    @property
    def filters(self) -> tuple[str, ...]:
        """What it wants to hear."""

    def hear(self, topic: str, payload: bytes, retained: bool) -> None:
        """A message. `retained`: the broker had it before anybody asked."""

    def told(self) -> None:
        """All retained messages have come."""

    def lost(self) -> None:
        """The connection is gone: what was heard may not be true any more."""


class MqttLink:
    """Stays connected to one broker. All of it belongs to one event loop."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._identifier = f"tl-api-{socket.gethostname()[:24]}-{os.getpid()}-{secrets.token_hex(3)}"
        self._followers: list[Follower] = []
        self._client: aiomqtt.Client | None = None
        self._up = asyncio.Event()
        self._turn = asyncio.Lock()
        # By topic; one that nobody listens to stays until its place is needed. The one used longest ago comes first.
        self._listeners: dict[str, list[Hear]] = {}
        self._listening = 0

    @property
    def is_up(self) -> bool:
        """Connected, and everything is listened to that should be."""
        return self._client is not None

    def follow(self, follower: Follower) -> None:
        """Let somebody hear what he follows. Before `run`."""
        self._followers.append(follower)

    async def run(self) -> None:
        """Connect, and connect again, until cancelled."""
        told = ""
        while True:
            try:
                async with aiomqtt.Client(
                    self._host,
                    self._port,
                    identifier=self._identifier,
                    max_queued_incoming_messages=_MOST_QUEUED,
                    socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
                ) as client:
                    client.pending_calls_threshold = 1_000_000
                    await side_by_side(self._receive(client), self._begin(client))
            except aiomqtt.MqttError as error:
                if str(error) != told or self._client is not None:
                    what = "is away" if self._client is None else "connection lost"
                    _LOG.warning("mqtt %s host=%s:%d error=%s", what, self._host, self._port, error)
                told = str(error) if self._client is None else ""
            finally:
                self._end()
            await asyncio.sleep(_RECONNECT_S)

    async def _begin(self, client: aiomqtt.Client) -> None:
        """Listen to all that is wanted; only then is anything published, so that no answer is missed."""
        async with self._turn:
            self._listeners = {topic: hearing for topic, hearing in self._listeners.items() if hearing}
            for topic in self._listeners:
                await self._subscribe(client, topic)
            for follower in self._followers:
                for each in follower.filters:
                    await self._subscribe(client, each)
            # Messages of QoS 0 come in order, so what is sent now comes back after all retained ones. With QoS 1 a
            # broker may keep back, and even drop, what is more than a few at a time.
            await self._subscribe(client, self._marker)
            await client.publish(self._marker, b"", qos=0, timeout=_ANSWER_S)
            self._client = client
            self._up.set()
        _LOG.info("mqtt connected host=%s:%d", self._host, self._port)

    @property
    def _marker(self) -> str:
        return f"tl-api/{self._identifier}/marker"

    async def _receive(self, client: aiomqtt.Client) -> None:
        async for message in client.messages:
            topic, payload = message.topic, message.payload
            if not isinstance(payload, bytes):
                continue
            if topic.value == self._marker:
                for follower in self._followers:
                    follower.told()
                continue
            for hear in tuple(self._listeners.get(topic.value, ())):
                hear(payload)
            for follower in self._followers:
                if any(topic.matches(each) for each in follower.filters):
                    follower.hear(topic.value, payload, message.retain)

    def _end(self) -> None:
        self._client = None
        self._up.clear()
        for follower in self._followers:
            follower.lost()

    async def _subscribe(self, client: aiomqtt.Client, topic: str) -> None:
        granted = await client.subscribe(topic, qos=0, timeout=_ANSWER_S)
        if any((code if isinstance(code, int) else code.value) >= _REFUSED for code in granted):
            raise aiomqtt.MqttError(f"the broker does not let us listen to {topic}")

    # Asking

    def away(self) -> MqttAway:
        """What to say when there is no connection."""
        return MqttAway(f"no connection to the MQTT broker at {self._host}:{self._port}")

    async def came_up(self) -> None:
        """Return when there is a connection, be it at once."""
        await self._up.wait()

    async def publish(self, topic: str, payload: bytes, timeout_s: float) -> None:
        """Return when the broker has it; MqttAway if that is not known in time."""
        client = self._client
        if client is None:
            raise self.away()
        try:
            await client.publish(topic, payload, qos=1, timeout=timeout_s)
        except aiomqtt.MqttError as error:
            raise self.away() from error

    @asynccontextmanager
    async def listening(self, topic: str, hear: Hear) -> AsyncIterator[None]:
        """Hear what comes on a topic, also if the connection is lost and comes back meanwhile. MqttAway, or Busy, if
        that cannot be had now."""
        if self._listening >= MOST_LISTENERS:
            raise Busy(f"{MOST_LISTENERS} requests wait for an answer already")
        self._listening += 1
        try:
            async with self._turn:
                hearing = await self._hearing(topic)
                hearing.append(hear)
            try:
                yield
            finally:
                hearing.remove(hear)
        finally:
            self._listening -= 1

    async def _hearing(self, topic: str) -> list[Hear]:
        """Those who listen to a topic, which is subscribed to."""
        client = self._client
        if client is None:
            raise self.away()
        hearing = self._listeners.pop(topic, None)
        if hearing is None:
            hearing = []
            try:
                await self._make_room(client)
                await self._subscribe(client, topic)
            except aiomqtt.MqttError as error:
                raise self.away() from error
        self._listeners[topic] = hearing
        return hearing

    async def _make_room(self, client: aiomqtt.Client) -> None:
        if len(self._listeners) < MOST_TOPICS:
            return
        # There are no more listeners than topics, and the one that room is made for has none yet.
        unused = next(topic for topic, hearing in self._listeners.items() if not hearing)
        del self._listeners[unused]
        await client.unsubscribe(unused, timeout=_ANSWER_S)
