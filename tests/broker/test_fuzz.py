"""Hostile and broken datagrams, from peers in every session state, with a broker that comes and goes.

The machine must not raise and must not grow. A run is decided by its seed alone; a failure names the seed and the step.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

from broker.config import PredefinedTopics
from broker.outputs import Peer
from protocol.mqttsn import (
    AnyMessage,
    Connect,
    Disconnect,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    RetryPolicy,
    SubAck,
    Subscribe,
    Unsubscribe,
    WillMsg,
    WillMsgReq,
    WillMsgUpd,
    WillTopic,
    WillTopicReq,
    WillTopicUpd,
    encapsulate,
    encode,
)
from tests.support.machine import Machine, at
from tests.support.mqttsn_strategies import samples

T = TypeVar("T")

PEERS = [*(at(number) for number in range(6)), at(0, b"node"), at(1, b"node"), at(0, b"inner", b"outer"), at(1, b"")]
CLIENTS = ["dev-1", "dev-2", "dev-3", "dev-4", "dev-5", "dev-6", "dev-7", "a/b", "ä"]
NAMES = ["t/x", "t/y", "t/z/1", "ab", "cd", "plant/1", "t/ä"]
FILTERS = [*NAMES, "#", "t/#", "t/+", "+/x", "t/z/+"]
LIMITS: dict[str, Any] = {
    "max_sessions": 8,
    "max_unconfirmed": 3,
    "max_departed": 4,
    "max_topics_per_session": 5,
    "max_subscriptions_per_session": 4,
    "max_uploads_per_session": 4,
    "max_pending_publishes": 12,
    "max_pending_bytes": 3_000,
    "max_buffered_messages": 10,
    "max_buffered_bytes": 2_000,
    "max_buffered_bytes_total": 8_000,
    "exchange_memory_count": 6,
    "in_flight_per_client": 3,
    "session_expiry_s": 3_000,
    "idle_limit_s": 2_000,
    "advertise_every_s": 500.0,
    "retry": RetryPolicy(first_s=0.5, least_s=0.2, most_s=4.0, attempts=3),
    "predefined": PredefinedTopics({1: "plant/1"}, {"dev-1": {2: "plant/own"}}),
}


class Fuzzer:
    """Makes up the next thing that happens to a machine."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self.machine = machine
        self.random = Random(seed)
        self.datagrams = 0
        self.up = True
        self._anything = [encode(message) for message in samples()]
        self._last = b"\x02\x16"

    def step(self) -> None:
        chance = self.random.random()
        if not self.up and chance < 0.03:
            self._toggle_broker()
        elif chance < 0.66:
            self._datagram(self._pick(PEERS))
        elif chance < 0.84:
            self._polite()
        elif chance < 0.90:
            self._broker_message()
        elif chance < 0.94:
            self._broker_answers()
        elif chance < 0.997:
            self.machine.advance(self._pick((0.01, 0.01, 0.1, 0.1, 0.3, 0.3, 1.0, 5.0)))
        elif chance < 0.9995 or not self.up:
            self._toggle_broker()
        else:
            self.machine.advance(self._pick((100.0, 1_000.0, 4_000.0)))

    # ------------------------------------------------------------------ devices

    def _datagram(self, peer: Peer) -> None:
        datagram = encode(self._message(peer)) if self.random.random() < 0.9 else self._pick(self._anything)
        if self.random.random() < 0.2:
            datagram = self._broken(datagram)
        self._last = datagram
        for node_id in peer[1]:
            datagram = encapsulate(datagram, node_id, self.random.randrange(4))
        if self.random.random() < 0.05:
            datagram = self._broken(datagram)
        self.datagrams += 1
        self.machine.receive(datagram, peer)

    def _polite(self) -> None:
        """One peer reads its mail and answers it as a real client would: without that, deep states stay unvisited."""
        if not self.machine.mail:
            return
        peer = self._pick(sorted(self.machine.mail, key=repr))
        for message in self.machine.take(peer):
            answer = self._answer(message, peer)
            if answer is not None:
                self.datagrams += 1
                self.machine.send_bytes(peer, encode(answer))

    def _client_at(self, peer: Peer) -> str:
        """Mostly the client that belongs there, at times another one."""
        if peer in PEERS and self.random.random() < 0.8:
            return CLIENTS[PEERS.index(peer) % len(CLIENTS)]
        return self._pick(CLIENTS)

    def _answer(self, message: AnyMessage, peer: Peer) -> AnyMessage | None:
        match message:
            case WillTopicReq():
                return WillTopic(self._pick(NAMES), self.random.randrange(3))
            case WillMsgReq():
                return WillMsg(b"gone")
            case Register():
                return RegAck(message.topic_id, message.msg_id, self._pick((0, 0, 0, 1, 2, 3)))
            case Publish(qos=1):
                return PubAck(message.topic_id, message.msg_id, self._pick((0, 0, 0, 0, 1, 2, 3)))
            case Publish(qos=2):
                return PubRec(message.msg_id)
            case PubRec():
                return PubRel(message.msg_id)
            case PubRel():
                return PubComp(message.msg_id)
            case SubAck(return_code=0):
                return Disconnect(self._pick((None, 5, 60, 600))) if self.random.random() < 0.3 else None
            case Disconnect():
                client_id = self._client_at(peer)
                return PingReq(client_id) if self.random.random() < 0.3 else Connect(client_id, 600, clean=False)
        return None

    def _message(self, peer: Peer) -> AnyMessage:
        """A packet that a client might send, with few values for each field, so that they meet."""
        r = self.random
        msg_id, topic_id, yes = r.randrange(6), r.randrange(6), r.random() < 0.5
        match r.randrange(24):
            case 0:
                keep_alive_s = self._pick((0, 5, 60, 600, 65_535))
                return Connect(self._client_at(peer), keep_alive_s, clean=yes, will=r.random() < 0.3)
            case 1:
                return self._will(r.randrange(4), yes)
            case 2 | 3:
                return PubRel(msg_id)
            case 4 | 5:
                return Register(0, msg_id, self._pick((*NAMES, "t/#", "$SYS/x")))
            case 6 | 7:
                return RegAck(topic_id, msg_id, r.randrange(4))
            case 8 | 9:
                number = self._pick((topic_id, 0x6162, 0xFFFF))
                return Publish(r.randrange(3), number, msg_id, bytes(r.randrange(400)), r.randrange(-1, 3), yes)
            case 10 | 11:
                return Publish(2, 0x6162, msg_id, b"%d" % r.randrange(2), r.randrange(1, 3), dup=yes)
            case 12 | 13:
                return PubAck(topic_id, msg_id, r.randrange(4))
            case 14:
                return PubRec(msg_id)
            case 15 | 16:
                return PubComp(msg_id)
            case 17 | 18 | 19:
                return Subscribe(*self._topic(), msg_id, r.randrange(3), yes)
            case 20:
                return Unsubscribe(*self._topic(), msg_id)
            case 21 | 22:
                return PingReq(self._client_at(peer) if yes else "")
            case _:
                return Disconnect(self._pick((None, 0, 60, 600, 600)))

    def _will(self, which: int, yes: bool) -> AnyMessage:
        topic = self._pick(("t/x", "t/y", "", "a/#"))
        match which:
            case 0:
                return WillTopic(topic, 1, yes)
            case 1:
                return WillTopicUpd(topic, 2, yes)
            case 2:
                return WillMsg(b"w")
            case _:
                return WillMsgUpd(b"u")

    def _topic(self) -> tuple[int, str | int]:
        """Topic type and topic of SUBSCRIBE and UNSUBSCRIBE."""
        kind = self._pick((0, 0, 0, 1, 2))
        if kind == 1:
            return kind, self._pick((1, 9))
        return kind, self._pick(("ab", "a#", "+/") if kind == 2 else FILTERS)

    def _broken(self, datagram: bytes) -> bytes:
        r = self.random
        cut = r.randrange(len(datagram) + 1)
        way: Callable[[], bytes] = self._pick(
            (
                lambda: _flipped(datagram, r.randrange(len(datagram) * 8)),
                lambda: _flipped(_flipped(datagram, r.randrange(len(datagram) * 8)), r.randrange(len(datagram) * 8)),
                lambda: datagram[:cut],
                lambda: datagram + r.randbytes(r.randrange(1, 9)),
                lambda: datagram[:cut] + self._last[r.randrange(len(self._last) + 1) :],
                lambda: _with_length(datagram[:cut] + self._last[r.randrange(len(self._last) + 1) :]),
                lambda: _with_length(datagram[:2] + r.randbytes(r.randrange(12))),
                lambda: bytes((1, (len(datagram) + 2) >> 8, (len(datagram) + 2) & 255)) + datagram[1:],
                lambda: r.randbytes(r.randrange(20)),
                lambda: bytes((3 + cut % 8, 0xFE)) + datagram,
            )
        )
        return way() or b"\x00"

    # ------------------------------------------------------------------ broker

    def _broker_message(self) -> None:
        filters = sorted(self.machine.gateway.subscriptions._filters)
        if filters:
            payload = bytes(self._pick((0, 1, 10, 500, 3_000)))
            through, qos, retained = self._pick(filters), self.random.randrange(2), self.random.random() < 0.2
            topic = through if "+" not in through and "#" not in through else self._pick(NAMES)
            self.machine.publish_from_broker(topic, payload, qos, through=through, retained=retained)

    def _broker_answers(self) -> None:
        machine = self.machine
        for topic_filter in {each.topic_filter for each in machine.subscribes}:
            machine.broker_subscribed(topic_filter, self.random.random() < 0.9)
        machine.subscribes.clear()
        if machine.uploads and self.random.random() < 0.5:
            upload = machine.uploads.pop(self.random.randrange(len(machine.uploads)))
            machine.gateway.broker_published(upload, self.random.random() < 0.9)
        else:
            machine.acknowledge()
        for log in (machine.published, machine.announced, machine.unsubscribes, machine.broadcasts):
            log.clear()

    def _toggle_broker(self) -> None:
        self.up = not self.up
        if self.up:
            self.machine.broker_up()
        else:
            self.machine.broker_down()

    def _pick(self, choices: list[T] | tuple[T, ...]) -> T:
        return choices[self.random.randrange(len(choices))]


def _flipped(datagram: bytes, bit: int) -> bytes:
    changed = bytearray(datagram)
    changed[bit >> 3] ^= 1 << (bit & 7)
    return bytes(changed)


def _with_length(datagram: bytes) -> bytes:
    return bytes((min(len(datagram), 255),)) + datagram[1:]


def fuzz(fuzzer: Fuzzer, seed: int, datagrams: int, check_every: int = 200) -> None:
    """Run until so many datagrams have been sent, and then say what went wrong where."""
    step = 0
    try:
        while fuzzer.datagrams < datagrams:
            step += 1
            fuzzer.step()
            if step % check_every == 0:
                fuzzer.machine.check_bounds()
            if len(fuzzer.machine.mail) > 200:
                fuzzer.machine.mail.clear()
    except Exception as error:
        raise AssertionError(f"seed {seed}, step {step}: {error!r}") from error


def check_everything_was_visited(machine: Machine) -> None:
    """Fuzzing that never gets past CONNECT proves nothing."""
    counters = machine.gateway.outputs.counters
    visited = {what for (what, _), times in counters.items() if times}
    for what in (
        "malformed",
        "refused",
        "published",
        "publish refused",
        "register refused",
        "subscribe refused",
        "connect refused",
        "will update refused",
        "congestion from a client",
        "delivered",
        "retransmitted",
        "duplicates",
        "dropped",
        "rebound",
        "sessions lost",
        "sessions ended",
        "sleepers that went back to sleep undrained",
        "acknowledgements nobody waits for",
        "wills",
    ):
        assert what in visited, f"never happened: {what}"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_datagram_breaks_or_bloats_the_gateway(seed: int) -> None:
    machine = Machine(**LIMITS)
    fuzz(Fuzzer(machine, seed), seed, 30_000)
    check_everything_was_visited(machine)


def test_a_gateway_comes_back_from_whatever_a_crash_left_in_the_journal(tmp_path: Path) -> None:
    seed = 4
    machine = Machine(tmp_path, **LIMITS)
    fuzzer = Fuzzer(machine, seed)
    for life in range(1, 9):
        fuzz(fuzzer, seed, life * 400, check_every=50)
        restored = fuzzer.machine.restarted(broker=fuzzer.up)
        restored.check_bounds()
        fuzzer.machine = restored
    fuzzer.machine.close()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1_000, 1_008))
def test_no_datagram_breaks_or_bloats_the_gateway_in_the_long_run(seed: int) -> None:
    machine = Machine(**LIMITS)
    fuzz(Fuzzer(machine, seed), seed, 500_000)
    check_everything_was_visited(machine)
