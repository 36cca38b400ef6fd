from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, cast
from urllib.request import urlopen

import aiomqtt
import pytest

import collector.translator
from collector.log_view import check, entries
from collector.registry import RegistryMissing, RegistryUnavailable
from collector.shard_log import RETIRE_AFTER_S
from collector.translator import Translator, TranslatorOptions
from protocol.records import SourcePayload
from protocol.topics import SHARDS, down_topic, shard_of, up_topic
from protocol.wire.answers import Logged, decode_answer
from protocol.wire.sections import Kind
from tests.collector.agents import FakeAgent
from tests.support.peers import Recorder
from tests.support.waiting import wait_until
from threadline.lab import Mosquitto, TranslatorService, find_mosquitto, free_port


def agent_in(shards: range, number: int = 0) -> FakeAgent:
    """An agent of one of these shards."""
    names = (f"pump-{each}" for each in range(10_000))
    found = [name for _, name in zip(range(200), names, strict=False) if shard_of(name) in shards]
    return FakeAgent(found[number])


def logged(folder: Path, agent: FakeAgent) -> list[int]:
    if not (folder / "registry.db").exists():
        return []
    return [entry.record.number for entry in entries(folder, [Kind.EVENT], agent.name)]


# One round of the worker, without a network


AGENT, OTHER = FakeAgent("pump-0"), FakeAgent("pump-1")
SHARD, OTHER_SHARD = shard_of(AGENT.name), shard_of(OTHER.name)
assert SHARD != OTHER_SHARD


@pytest.fixture
def translator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Translator]:
    monkeypatch.setattr(collector.translator, "_TROUBLE_S", 0.0)
    made = Translator(TranslatorOptions(("127.0.0.1", 1), tmp_path / "log", [SHARD, OTHER_SHARD]))
    for shard in (SHARD, OTHER_SHARD):
        assert made._open(shard) is None
    yield made
    made._end()


def answers(
    translator: Translator, *batches: tuple[FakeAgent, int], greeted: list[int] | None = None
) -> dict[str, int]:
    """How far each agent is told that it has come."""
    found = translator._work([(agent.name, agent.framed(seq)) for agent, seq in batches], greeted or [], 0.0)
    return {agent: answer.next_seq for agent, answer in found}


def test_a_shard_that_cannot_be_written_does_not_stop_the_others(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fdatasync

    def full(fd: int) -> None:
        if f"shard-{SHARD:02d}" in str(Path(f"/proc/self/fd/{fd}").readlink()):
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", full)
        assert answers(translator, (AGENT, 0), (OTHER, 0)) == {OTHER.name: 1}
        assert translator.totals()["shards_in_trouble"] == 1
        assert answers(translator, (AGENT, 1), (OTHER, 1)) == {OTHER.name: 2}
        totals = translator.totals()
        assert (totals["troubled"], totals["overrun"]) == (1, 0), "no more is taken for the one: it comes again"
    assert answers(translator) == {AGENT.name: 1}
    assert translator.totals()["shards_in_trouble"] == 0
    assert answers(translator, (AGENT, 1)) == {AGENT.name: 2}


def test_who_cannot_be_heard_because_the_log_cannot_be_written_is_not_silent(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own disk was full for longer than an agent may be silent."""
    sync, now = os.fdatasync, monotonic()

    def full(fd: int) -> None:
        if f"shard-{SHARD:02d}" in str(Path(f"/proc/self/fd/{fd}").readlink()):
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(fd)

    monkeypatch.setattr(collector.translator, "monotonic", lambda: now)
    for shard in translator._shards.values():
        shard._clock = lambda: now
    translator._client = cast(aiomqtt.Client, Postman(together=1))
    assert answers(translator, (AGENT, 0), (OTHER, 0)) == {AGENT.name: 1, OTHER.name: 1}
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", full)
        for _ in range(30):
            now += 3600.0
            answers(translator, (AGENT, 1))
    assert translator._shards[OTHER_SHARD].counters.retired == 1, "that one was silent"
    now += 3600.0
    answers(translator)
    assert translator.totals()["shards_in_trouble"] == 0
    now += 3600.0
    answers(translator)
    assert translator._shards[SHARD].counters.retired == 0, "it has not had the time to be heard"
    now += RETIRE_AFTER_S
    answers(translator)
    assert translator._shards[SHARD].counters.retired == 1


@pytest.mark.parametrize("gone", ["", f"shard-{SHARD:02d}"])
def test_nothing_is_acknowledged_into_a_log_that_was_deleted(
    translator: Translator, tmp_path: Path, caplog: pytest.LogCaptureFixture, gone: str
) -> None:
    assert answers(translator, (AGENT, 0), (OTHER, 0)) == {AGENT.name: 1, OTHER.name: 1}
    shutil.rmtree(tmp_path / "log" / gone)
    found: dict[str, int] = {}
    for seq in (1, 0, 0):  # a copy of what was logged is not acknowledged either
        found |= answers(translator, (AGENT, seq), (OTHER, seq))
    assert AGENT.name not in found
    assert translator.totals()["shards_in_trouble"] == (2 if gone == "" else 1)
    assert caplog.text.count(f"the log cannot be written shard={SHARD} error=") == 1
    assert "000000000001.arrows was deleted or moved while in use" in caplog.text
    assert (OTHER.name in found) == (gone != "")


def test_what_is_wrong_is_told_whenever_it_changes(
    translator: Translator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", full)
        for _ in range(3):
            assert answers(translator, (AGENT, 0)) == {}
    shutil.rmtree(tmp_path / "log" / f"shard-{SHARD:02d}")
    for _ in range(3):
        assert answers(translator, (AGENT, 0)) == {}
    told = [record.getMessage() for record in caplog.records if "cannot be written" in record.getMessage()]
    assert len(told) == 2
    assert "No space left" in told[0]
    assert "was deleted or moved" in told[1]


def test_a_log_whose_registry_is_gone_is_not_written(translator: Translator, tmp_path: Path) -> None:
    answers(translator, (AGENT, 0))
    (tmp_path / "log" / "registry.db").unlink()
    with pytest.raises(RegistryMissing, match="Put it back from a copy"):
        Translator(TranslatorOptions(("127.0.0.1", 1), tmp_path / "log", [SHARD]))


def test_without_the_registry_batches_wait(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unavailable(*_: Any) -> Any:
        raise RegistryUnavailable("the disk is full")

    batch = (AGENT.name, AGENT.framed(0, SourcePayload(AGENT.stream("s"), 0, 0, 0)))
    with monkeypatch.context() as patched:
        patched.setattr(translator._registry, "numbers_of", unavailable)
        for _ in range(3):
            assert [answer.next_seq for _, answer in translator._work([batch], [], 0.0)] == [0]
    assert caplog.text.count("batches must wait") == 1
    assert translator.totals()["must_wait"] == 3
    assert [answer.next_seq for _, answer in translator._work([batch], [], 0.0)] == [1]


def test_who_is_greeted_is_told_how_far_it_is(translator: Translator) -> None:
    answers(translator, (AGENT, 0), (OTHER, 0))
    assert answers(translator, greeted=[SHARD]) == {AGENT.name: 1}


def test_what_waits_is_bounded(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector.translator, "_MOST_WAITING_OF_ONE", 5)
    monkeypatch.setattr(collector.translator, "_MOST_WAITING_BYTES", 1_000)
    for _ in range(10):
        translator._put(up_topic(AGENT.name), bytes(10))
    assert translator.overrun == 5, "one agent cannot fill it alone"
    for _ in range(3):
        translator._put(up_topic(OTHER.name), bytes(400))
    assert translator.overrun == 6
    for topic in ("tl/0/nobody/up", "tl/99/x/up", "other", up_topic(agent_in(range(SHARDS), 30).name)):
        translator._put(topic, b"")
    assert translator.not_mine >= 3


def test_a_broker_that_does_not_let_us_listen_is_an_error(translator: Translator) -> None:
    """Else nobody would notice that nothing ever comes."""

    class Refusing:
        async def subscribe(self, topic: str, qos: int) -> tuple[int]:
            return (0x80 if topic.startswith(f"tl/{OTHER_SHARD}/") else 1,)

    with pytest.raises(aiomqtt.MqttError, match=f"listen to tl/{OTHER_SHARD}/"):
        asyncio.run(translator._subscribe(cast(aiomqtt.Client, Refusing())))


def test_a_shard_may_be_taken_while_others_are_subscribed_to(translator: Translator) -> None:
    """The worker takes shards on its own thread: here, in the middle of the look at those that there are."""
    shards: dict[int, Any] = translator._shards
    log = shards[SHARD]

    class Looked(int):
        def __eq__(self, other: object) -> bool:
            shards.setdefault(SHARDS + len(shards), log)
            return int(self) == other

        __hash__ = int.__hash__

    class Granting:
        def __init__(self) -> None:
            self.topics: list[str] = []

        async def subscribe(self, topic: str, qos: int) -> tuple[int]:
            self.topics.append(topic)
            if len(self.topics) == 2:
                translator._has_shard.set()
            return (qos,)

    async def subscribe(client: Granting) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(translator._subscribe(cast(aiomqtt.Client, client)), 0.2)

    shards[Looked(SHARD)] = shards.pop(SHARD)
    client = Granting()
    asyncio.run(subscribe(client))
    assert {f"tl/{shard}/+/up" for shard in (SHARD, OTHER_SHARD)} == {*client.topics[:2]}
    for shard in [each for each in shards if each >= SHARDS]:
        del shards[shard]


class Postman:
    """In the place of a connection: an answer is sent when so many were handed over."""

    def __init__(self, together: int, error: Exception | None = None) -> None:
        self.topics: list[str] = []
        self._together = together
        self._error = error
        self._all = asyncio.Event()

    async def publish(self, topic: str, payload: bytes, **_: Any) -> None:
        self.topics.append(topic)
        if len(self.topics) == self._together:
            self._all.set()
        await self._all.wait()
        if self._error is not None:
            raise self._error


def tell(translator: Translator, postman: Postman) -> None:
    told = [(agent.name, Logged(agent.nonce, 1)) for agent in (AGENT, OTHER)]
    translator._client = cast(aiomqtt.Client, postman)
    asyncio.run(asyncio.wait_for(translator._tell(told), 5))
    assert postman.topics == [down_topic(AGENT.name), down_topic(OTHER.name)]


def test_no_answer_waits_until_another_is_sent(translator: Translator) -> None:
    tell(translator, Postman(together=2))
    assert translator.totals()["untold"] == 0


def test_answers_that_a_lost_connection_takes_along_are_not_missed_but_counted(translator: Translator) -> None:
    asyncio.run(translator._tell([(AGENT.name, Logged(AGENT.nonce, 1))]))
    assert translator.totals()["untold"] == 1, "there is none yet"
    tell(translator, Postman(2, aiomqtt.MqttError("gone")))
    assert translator.totals()["untold"] == 3
    with pytest.raises(ZeroDivisionError):
        tell(translator, Postman(2, ZeroDivisionError()))


def test_a_broker_that_takes_no_answers_is_not_waited_for_for_ever(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector.translator, "_TELL_S", 0.05)
    tell(translator, Postman(together=3))
    assert translator.totals()["untold"] == 2


# As processes, with a real broker


class Translating(TranslatorService):
    """A translator with metrics; `waits` for its shards if somebody else has them."""

    def __init__(self, folder: Path, broker: Mosquitto, shards: str = "0-15", name: str = "translator") -> None:
        self.metrics_port = free_port()
        super().__init__(folder, broker, "--shards", shards, "--metrics", f"127.0.0.1:{self.metrics_port}", name=name)
        self.waits = False

    def is_ready(self) -> bool:
        return "waiting for a shard" in self.output() if self.waits else super().is_ready()

    def metric(self, name: str) -> float:
        with urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        (value,) = [line.split()[1] for line in lines if line.startswith(f"threadline_translator_{name} ")]
        return float(value)


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed (Debian: apt install mosquitto)")
    with Mosquitto(tmp_path_factory.mktemp("mosquitto")) as service:
        yield service


class Agents:
    """Publishes what agents would, and hears what they are told."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._forgotten = 0

    def publish(self, agent: FakeAgent, *seqs: int) -> None:
        for seq in seqs:
            self._recorder.publish(up_topic(agent.name), agent.framed(seq), qos=1)

    def answers(self, agent: FakeAgent) -> list[Logged]:
        topic = down_topic(agent.name)
        received = self._recorder.received[self._forgotten :]
        found = [decode_answer(each.payload, agent.name) for each in received if each.topic == topic]
        return [each for each in found if isinstance(each, Logged)]

    def heard(self, agent: FakeAgent, next_seq: int) -> Callable[[], bool]:
        """Whether it was told that it has come so far."""
        return lambda: any(answer.next_seq == next_seq for answer in self.answers(agent))

    def forget(self) -> None:
        """What was heard so far."""
        self._forgotten = len(self._recorder.received)


@contextmanager
def agents_at(mosquitto: Mosquitto) -> Iterator[Agents]:
    with Recorder(mosquitto.port, "tl/+/+/down", qos=1) as recorder:
        yield Agents(recorder)


def test_a_translator_through_a_kill_and_a_clean_stop(mosquitto: Mosquitto, tmp_path: Path) -> None:
    agent = FakeAgent("pump-7")
    with Translating(tmp_path, mosquitto) as translator:
        with agents_at(mosquitto) as agents:
            agents.publish(agent, 0, 1, 3)
            wait_until(agents.heard(agent, 2), "two batches to be acknowledged")
            wait_until(lambda: agents.answers(agent)[-1].early == 0b1, "the third to wait")
            agents.publish(agent, 1)
            wait_until(lambda: translator.metric("duplicates_total") == 1, "a copy to be counted")
            assert (translator.metric("batches_total"), translator.metric("agents")) == (2, 1)
            assert logged(translator.log_folder, agent) == [0, 1]

            translator.kill()
            agents.forget()
            translator.start()
            wait_until(agents.heard(agent, 2), "the new process to say how far the agent had come, without being asked")
            agents.publish(agent, 2, 3)
            wait_until(agents.heard(agent, 4), "the rest to be acknowledged")
        mosquitto.kill()
        mosquitto.start()
        wait_until(lambda: translator.output().count("translator ready") == 2, "the translator to come back")
        assert translator.output().count("mqtt is away") == 1
        with agents_at(mosquitto) as agents:
            agents.publish(agent, 4)
            wait_until(agents.heard(agent, 5), "a batch after the broker's restart")
            agents.publish(agent, 5)
            assert translator.stop() == 0
        assert "translator stopped batches=" in translator.output()
        assert logged(translator.log_folder, agent) in ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5])
    assert [line for line, is_fault in check(translator.log_folder) if is_fault] == []


def test_translators_split_the_shards_and_a_successor_waits(mosquitto: Mosquitto, tmp_path: Path) -> None:
    low, high = agent_in(range(8), 1), agent_in(range(8, 16), 1)
    successor = Translating(tmp_path, mosquitto, "0-7", "successor")
    successor.waits = True
    with (
        Translating(tmp_path, mosquitto, "0-7", "first") as first,
        Translating(tmp_path, mosquitto, "8-15", "second") as second,
        successor,
        agents_at(mosquitto) as agents,
    ):
        for agent in (low, high):
            agents.publish(agent, 0, 1)
        for agent in (low, high):
            wait_until(agents.heard(agent, 2), f"{agent.name} to be acknowledged")
        assert [each.metric("batches_total") for each in (first, second, successor)] == [2, 2, 0]
        waiting = [line for line in successor.output().splitlines() if "waiting for a shard" in line]
        assert len(waiting) == 1
        assert waiting[0].endswith(f"shards=0-7 written_by=process {first.pid} on {socket.gethostname()}")

        first.kill()
        agents.forget()
        wait_until(agents.heard(low, 2), "the successor to take over")
        agents.publish(low, 2)
        agents.publish(high, 2)
        for agent in (low, high):
            wait_until(agents.heard(agent, 3), f"{agent.name} to go on")
            assert logged(first.log_folder, agent) == [0, 1, 2]
        assert successor.metric("shards") == 8
    assert [line for line, is_fault in check(first.log_folder) if is_fault] == []
