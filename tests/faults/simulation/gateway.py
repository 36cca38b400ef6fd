"""The gateway as a process: its session machine and its journal, between the link and the broker.

It stands in for `broker.server` and `broker.bridge`, turn by turn: what came in, the timers, then the commit, and only
then what goes out. It may die before the commit, right after it, or with some of the datagrams sent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

from broker.config import GatewayConfig
from broker.gateway import Gateway
from broker.journal import SqliteJournal
from broker.outputs import MqttPublish, MqttSubscribe, MqttUnsubscribe
from tests.faults.simulation.disk import Killed
from tests.faults.simulation.mqtt import RECONNECT_S, Broker, Mail
from tests.faults.simulation.timeline import Process, Timeline

NAME = "gateway"
Address = tuple[str, int]


class GatewayProcess(Process):
    """One life of the gateway; the folder outlives it."""

    def __init__(
        self, timeline: Timeline, folder: Path, broker: Broker, send: Callable[[bytes, Address], None], dice: Random
    ) -> None:
        super().__init__(timeline)
        self.dies_in_turn = 0
        """If positive: it dies in that turn from now on."""
        self._broker = broker
        self._send = send
        self._dice = dice
        self._journal = SqliteJournal(folder)
        self._journal._db.execute("PRAGMA synchronous=OFF")
        config = GatewayConfig()
        self.machine = Gateway(config, self._journal, Random(dice.random()))
        sessions = self._journal.sessions(timeline.now, config.retry)
        self.machine.restore(sessions, self._journal.announcements(), timeline.now)
        self._in_flight: dict[int, MqttPublish] = {}
        self._number = 0
        self._to_acknowledge: list[Mail] = []
        self._is_connected = False
        self.is_running = True
        self._connect()

    # MQTT

    def _connect(self) -> None:
        if not self.is_running or self._is_connected:
            return
        if not self._broker.connect(NAME, self._mail, True, self._lost):
            self.timeline.later(RECONNECT_S, self._connect)
            return
        self._is_connected = True
        self.put(self._is_up)

    def _is_up(self) -> None:
        """What was half way is given to the broker again, from the start."""
        self.machine.broker_up()
        again, self._in_flight = self._in_flight, {}
        for action in again.values():
            self._publish(action)

    def _lost(self) -> None:
        self._is_connected = False
        self._to_acknowledge.clear()
        self.put(self.machine.broker_down)
        self.timeline.later(RECONNECT_S, self._connect)

    def _mail(self, mail: Mail) -> None:
        self.put(partial(self._receive_mail, mail))

    def _receive_mail(self, mail: Mail) -> None:
        self.machine.broker_message(mail.topic_filter, mail.topic, mail.payload, mail.qos, False, self.timeline.now)
        if mail.qos:
            self._to_acknowledge.append(mail)

    def _publish(self, action: MqttPublish) -> None:
        self._number += 1
        number = self._number
        if action.qos:
            self._in_flight[number] = action
        if self._is_connected:
            self._broker.publish(
                action.topic, action.payload, action.qos, partial(self.put, partial(self._published, number))
            )

    def _published(self, number: int) -> None:
        action = self._in_flight.pop(number, None)
        if action is not None and action.upload is not None:
            self.machine.broker_published(action.upload, True)

    def _subscribed(self, topic_filter: str) -> None:
        self.machine.broker_subscribed(topic_filter, True, self.timeline.now)

    # UDP

    def datagram(self, address: Address, datagram: bytes) -> None:
        """One has come."""
        self.put(lambda: self.machine.receive(datagram, address, self.timeline.now))

    # A turn

    def step(self, now: float) -> float:
        for news in self.take():
            news()
        self.machine.tick(now)
        self._end_turn()
        return self.machine.next_deadline

    def _end_turn(self) -> None:
        out = self.machine.outputs
        dies = False
        if self.dies_in_turn:
            self.dies_in_turn -= 1
            dies = not self.dies_in_turn
        if dies and self._dice.random() < 0.3:
            raise Killed
        for action in out.mqtt:
            if isinstance(action, MqttPublish):
                self._publish(action)
            elif isinstance(action, MqttSubscribe):
                subscribed = partial(self.put, partial(self._subscribed, action.topic_filter))
                self._broker.subscribe(NAME, action.topic_filter, action.qos, subscribed)
            elif isinstance(action, MqttUnsubscribe):
                self._broker.unsubscribe(NAME, action.topic_filter)
        out.mqtt.clear()
        assert self._journal.commit(), "the journal cannot be written"
        for mail in self._to_acknowledge:
            self._broker.acknowledge(NAME, mail)
        self._to_acknowledge.clear()
        datagrams = list(out.datagrams)
        out.datagrams.clear()
        out.broadcasts.clear()
        for datagram, address in datagrams[: self._dice.randrange(len(datagrams) + 1)] if dies else datagrams:
            self._send(datagram, (address[0], address[1]))
        if dies:
            raise Killed

    def end(self) -> None:
        """Nothing of it goes on; what it was told and has not committed is gone."""
        self.is_running = False
        self.inbox.clear()
        self._broker.disconnect(NAME)
        self._journal.close()
        self.leave()
