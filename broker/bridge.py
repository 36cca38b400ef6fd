"""Carries out the machine's MQTT actions and feeds it what the broker says.

Two connections for all devices. *Uplink* publishes: its session starts clean with the process and is resumed when the
broker comes back, so that QoS 2 holds across a broker restart. *Downlink* subscribes: its session outlives the process,
so that the broker keeps messages while the gateway is away. A message from the broker is acknowledged when the journal
has it; a copy the broker sends again after that is recognised by its packet id and content.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from time import monotonic
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.matcher import MQTTMatcher
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from broker.gateway import Gateway
from broker.journal import Journal
from broker.mqtt_connection import FAILURE, RECEIVE_MAXIMUM, Broker, Handlers, MqttConnection
from broker.outputs import MqttPublish, MqttSubscribe, MqttUnsubscribe

log = logging.getLogger(__name__)

_PACKET_ID_NOT_FOUND = 0x92
_RECENT = 4 * RECEIVE_MAXIMUM
"""Packet ids remembered: more than a broker can have sent and not seen acknowledged."""
_MAX_UNSENT_BYTES = 8 * 1024 * 1024
_MAX_QUEUED_QOS_0_BYTES = 8 * 1024 * 1024


class Bridge:
    """Between one `Gateway` machine and one MQTT broker. `turn` is called after each batch of broker events."""

    def __init__(self, gateway: Gateway, broker: Broker, journal: Journal, turn: Callable[[], None]) -> None:
        self._gateway = gateway
        self._journal = journal
        self._turn = turn
        self._version = broker.version
        self._name = journal.identity
        self._uplink = MqttConnection(
            broker,
            f"{self._name}-up-{secrets.token_hex(3)}",
            keep_session=broker.version != 5,
            handlers=Handlers(self._uplink_up, self._down, self._published, _nothing, _nothing, turn, self._trouble),
        )
        self._downlink = MqttConnection(
            broker,
            f"{self._name}-down",
            keep_session=journal.keeps,
            handlers=Handlers(
                self._downlink_up, self._downlink_down, _nothing, self._subscribed, self._message, turn, self._trouble
            ),
        )
        # On the downlink, whose client id stays the same: a new process takes over from one that died unseen.
        self._downlink.set_will(self._state_topic, b"offline")
        self._queue: deque[MqttPublish] = deque()
        self._queued_bytes = 0
        self._in_flight: dict[int, MqttPublish] = {}
        self._asked: dict[int, str] = {}
        self._filters: dict[int, str] = journal.filters()
        self._filter_ids = {topic_filter: number for number, topic_filter in self._filters.items()}
        self._last_filter_id = journal.last_filter_id()
        self._matcher = MQTTMatcher()  # type: ignore[no-untyped-call]
        self._recent: dict[int, bytes] = journal.received()
        self._to_acknowledge: list[int] = []
        self._is_up = False
        self._troubles: set[str] = set()
        self._is_blocked = False
        self._drained = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def _state_topic(self) -> str:
        return f"tl-gateway/{self._name}/state"

    @property
    def name(self) -> str:
        """The gateway's name, as in its state topic."""
        return self._name

    @property
    def is_up(self) -> bool:
        return self._is_up

    @property
    def unacknowledged(self) -> int:
        """Publishes the broker has not acknowledged yet."""
        return len(self._in_flight) + len(self._queue)

    def start(self) -> None:
        """Begin to connect, in the background."""
        self._tasks = [asyncio.create_task(each.run()) for each in (self._uplink, self._downlink)]
        self._tasks.append(asyncio.create_task(self._keep_alive()))

    async def drain(self, timeout_s: float) -> None:
        """Wait until the broker has acknowledged everything, if it is there and does so in time."""
        self._drained.clear()
        if self._is_up and self.unacknowledged:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), timeout_s)

    async def stop(self) -> None:
        """Say goodbye to the broker."""
        if self._downlink.is_up:
            self._downlink.client.publish(self._state_topic, b"offline", qos=1, retain=True)
        self._uplink.stop()
        self._downlink.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(1)
            self._uplink.keep_alive()
            self._downlink.keep_alive()

    # ------------------------------------------------------------------ connections

    def _uplink_up(self, session_present: bool) -> None:
        if self._in_flight and not session_present:
            # The broker has forgotten what was half way: give it all of that again, from the start.
            log.warning("mqtt session lost in_flight=%d", len(self._in_flight))
            for action in reversed(self._in_flight.values()):
                self._publish_again(action)
            self._in_flight.clear()
            self._uplink.start_over()
            return
        self._both_up()

    def _downlink_up(self, session_present: bool) -> None:
        if not session_present:
            self._recent.clear()
            self._journal.forget_received()
        self._downlink.client.publish(self._state_topic, b"online", qos=1, retain=True)
        self._unsubscribe_leftovers()
        self._both_up()

    def _unsubscribe_leftovers(self) -> None:
        for topic_filter in [each for each in self._filter_ids if each not in self._gateway.subscriptions]:
            self._unsubscribe(topic_filter)

    def _both_up(self) -> None:
        if self._uplink.is_up and self._downlink.is_up and not self._is_up:
            self._is_up = True
            self._troubles.clear()
            log.info("mqtt connected name=%s", self._name)
            if not self._is_blocked:
                self._gateway.broker_up()

    def _trouble(self, text: str) -> None:
        """Tell once what both connections meet whenever they try, until they are up again."""
        if text not in self._troubles:
            self._troubles.add(text)
            log.warning("%s", text)

    def _downlink_down(self) -> None:
        self._asked.clear()
        self._to_acknowledge.clear()
        self._down()

    def _down(self) -> None:
        if self._is_up:
            self._is_up = False
            self._drained.set()
            log.warning("mqtt connection lost; devices are told of congestion until it is back")
            self._gateway.broker_down()

    # ------------------------------------------------------------------ actions

    def carry_out(self) -> None:
        """Do what the machine has asked for in this turn; `flush` lets it out."""
        actions = self._gateway.outputs.mqtt
        if actions:
            for action in actions:
                if type(action) is MqttPublish:
                    if action.qos or self._queued_bytes < _MAX_QUEUED_QOS_0_BYTES:
                        self._queue.append(action)
                        self._queued_bytes += len(action.payload)
                    else:
                        self._gateway.outputs.count("dropped", "broker too slow at qos 0 or -1")
                elif type(action) is MqttSubscribe:
                    self._subscribe(action)
                elif type(action) is MqttUnsubscribe:
                    self._unsubscribe(action.topic_filter)
            actions.clear()
        if self._queue and self._uplink.is_up:
            self._publish_queued()

    def flush(self, committed: bool) -> None:
        """Write everything in one go; what came from the broker is acknowledged once the journal has it."""
        if committed:
            for mid in self._to_acknowledge:
                self._downlink.client.ack(mid, 1)
            self._to_acknowledge.clear()
        if committed is self._is_blocked:
            self._block(not committed)
        self._uplink.flush()
        self._downlink.flush()

    def _block(self, blocked: bool) -> None:
        """While the state cannot be written, devices are served as if the broker were away."""
        self._is_blocked = blocked
        if not self._is_up:
            return
        if blocked:
            self._gateway.broker_down()
        else:
            self._gateway.broker_up()
        asyncio.get_running_loop().call_soon(self._turn)

    def _publish_queued(self) -> None:
        window = self._uplink.receive_maximum
        publish = self._uplink.client.publish
        while self._queue and len(self._in_flight) < window and self._uplink.unsent_bytes < _MAX_UNSENT_BYTES:
            action = self._queue.popleft()
            self._queued_bytes -= len(action.payload)
            info = publish(action.topic, action.payload, action.qos, action.retain)
            if action.qos:
                self._in_flight[info.mid] = action

    def _published(self, mid: int, reason: int) -> None:
        action = self._in_flight.pop(mid, None)
        if action is None:
            return
        if reason == _PACKET_ID_NOT_FOUND:
            self._publish_again(action)
        elif action.upload is not None:
            self._gateway.broker_published(action.upload, reason < FAILURE)
        elif reason >= FAILURE:
            log.warning("mqtt publish refused topic=%s reason=%#x", action.topic, reason)
        if not self.unacknowledged:
            self._drained.set()

    def _publish_again(self, action: MqttPublish) -> None:
        self._queue.appendleft(action)
        self._queued_bytes += len(action.payload)

    def _filter_id(self, topic_filter: str) -> int:
        number = self._filter_ids.get(topic_filter)
        if number is None:
            number = self._last_filter_id = self._last_filter_id + 1
            self._journal.save_filter(number, topic_filter)
            self._filters[number] = topic_filter
            self._filter_ids[topic_filter] = number
        return number

    def _subscribe(self, action: MqttSubscribe) -> None:
        number = self._filter_id(action.topic_filter)
        if not self._downlink.is_up:
            return
        client = self._downlink.client
        if self._version == 5:
            properties = Properties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call]
            properties.SubscriptionIdentifier = number
            options = SubscribeOptions(qos=action.qos, retainHandling=0 if action.retained else 2)
            _, mid = client.subscribe(action.topic_filter, options=options, properties=properties)
        else:
            self._matcher[action.topic_filter] = action.topic_filter
            _, mid = client.subscribe(action.topic_filter, action.qos)
        if mid is not None:
            self._asked[mid] = action.topic_filter

    def _unsubscribe(self, topic_filter: str) -> None:
        number = self._filter_ids.get(topic_filter)
        if number is None or not self._downlink.is_up:
            return
        self._downlink.client.unsubscribe(topic_filter)
        del self._filter_ids[topic_filter]
        del self._filters[number]
        self._journal.delete_filter(topic_filter)
        if self._version != 5:
            del self._matcher[topic_filter]  # type: ignore[no-untyped-call]

    def _subscribed(self, mid: int, accepted: bool) -> None:
        topic_filter = self._asked.pop(mid, None)
        if topic_filter is not None:
            self._gateway.broker_subscribed(topic_filter, accepted, monotonic())

    # ------------------------------------------------------------------ messages

    def _message(self, message: paho.MQTTMessage) -> None:
        if message.qos:
            self._to_acknowledge.append(message.mid)
            if self._is_copy(message):
                self._gateway.outputs.count("duplicates", "message from the broker")
                return
        now = monotonic()
        filters = self._filters_of(message)
        if not filters:
            self._gateway.outputs.count("dropped", "no subscriber any more")
        for topic_filter in filters:
            self._gateway.broker_message(
                topic_filter, message.topic, bytes(message.payload), message.qos, message.retain, now
            )
        if self._journal.has_news and message.qos:
            self._journal.save_received(message.mid, self._recent[message.mid])

    def _filters_of(self, message: paho.MQTTMessage) -> list[str]:
        if self._version == 5:
            numbers = getattr(message.properties, "SubscriptionIdentifier", ())
            return [self._filters[number] for number in numbers if number in self._filters]
        return list(self._matcher.iter_match(message.topic))  # type: ignore[no-untyped-call]

    def _is_copy(self, message: paho.MQTTMessage) -> bool:
        digest = blake2b(message.topic.encode() + b"\0" + message.payload, digest_size=8).digest()
        if message.dup and self._recent.get(message.mid) == digest:
            return True
        self._recent.pop(message.mid, None)
        self._recent[message.mid] = digest
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]
        return False


def _nothing(*_: Any) -> None:
    """For what a connection is not used for."""
