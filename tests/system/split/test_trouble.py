"""Send and Receive when one of the two agents dies, comes late, or cannot take any more."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from collector.log_view import check, entries
from protocol.records import Gap
from protocol.wire.sections import Kind
from tests.support.waiting import wait_until
from tests.system.split.fleet import Cloud
from tests.system.split.numbers import (
    RECEIVER,
    SENDER,
    SINK,
    expected,
    read_journal,
    receiver_app,
    sender_app,
)

FLUSH_S = 0.2
ALLOWANCE_S = 0.4
"""What a number needs, on a busy machine, from the source to the queue and from there, besides waiting, to the disk."""
SMALL: dict[str, Any] = {"spool_bytes": 64 << 10, "memory_bytes": 64 << 10}


@pytest.fixture
def cloud(mosquitto_installed: None, tmp_path: Path) -> Iterator[Cloud]:
    with Cloud(tmp_path) as made:
        yield made


def delivered(log: Path) -> list[tuple[int, Any]]:
    """What has reached the sink in all lives of the receiver, in the order of the log; the log itself is sound."""
    assert not [line for line, is_fault in check(log) if is_fault]
    told = [each.record for each in entries(log, [Kind.DELIVERY], RECEIVER)]
    return [(each.ts, each.payload) for each in told if each.stream.name == SINK]


def gaps(log: Path, agent: str) -> list[Gap]:
    return [each.record for each in entries(log, [Kind.GAP], agent)]


def test_a_receiver_that_is_killed_takes_every_tuple_once(cloud: Cloud, tmp_path: Path) -> None:
    sender = cloud.agent(SENDER, sender_app(tmp_path, 1_800, per_s=300), flush_s=FLUSH_S)
    receiver = cloud.agent(RECEIVER, receiver_app(tmp_path), flush_s=FLUSH_S)
    receiver.start()
    sender.start()
    random = Random(7)
    kills = 3
    for _ in range(kills):
        time.sleep(0.4 + random.random() / 2)
        assert receiver.is_running
        receiver.kill()
        receiver.start()
    for agent in (sender, receiver):
        agent.ends_acknowledged(40)
    log = cloud.log()
    assert delivered(log) == expected(range(1_800))
    crashes = gaps(log, RECEIVER)
    assert len(crashes) == kills and all(gap.reason.startswith("crash") for gap in crashes)
    begun = [each for each in entries(log, [Kind.PLAN, Kind.GAP], RECEIVER) if each.seq == 0]
    assert len(begun) == 2 * kills + 1, "every life but the first begins with how the one before it has ended"


def test_a_sender_that_is_killed_loses_only_what_was_not_on_disk(cloud: Cloud, tmp_path: Path) -> None:
    sender = cloud.agent(SENDER, sender_app(tmp_path, 900, per_s=300), flush_s=FLUSH_S)
    receiver = cloud.agent(RECEIVER, receiver_app(tmp_path), flush_s=FLUSH_S)
    receiver.start()
    sender.start()
    killed_at = []
    for _ in range(2):
        time.sleep(1.0)
        assert sender.is_running
        killed_at.append(time.monotonic())
        sender.kill()
        sender.start()
    for agent in (sender, receiver):
        agent.ends_acknowledged(40)
    log = cloud.log()
    found = delivered(log)
    assert found == sorted(found, key=lambda each: each[0]) and len(dict(found)) == len(found), "each once, in order"
    missing = {number for number, _ in expected(range(900))} - dict(found).keys()
    taken_at = read_journal(tmp_path / "journal")
    too_old = [
        number for number in missing if not any(0 <= at - taken_at[number] < FLUSH_S + ALLOWANCE_S for at in killed_at)
    ]
    assert not too_old
    assert len(found) > 300
    assert len(gaps(log, SENDER)) == 2 and not gaps(log, RECEIVER)


def test_a_receiver_that_comes_late_gets_everything_at_once(cloud: Cloud, tmp_path: Path) -> None:
    sender = cloud.agent(SENDER, sender_app(tmp_path, 60, per_s=100))
    sender.start()
    wait_until(lambda: sender.not_taken > 2, "the sender has nobody to send to")
    time.sleep(1.0)
    receiver = cloud.agent(RECEIVER, receiver_app(tmp_path)).start()
    began = time.monotonic()
    for agent in (sender, receiver):
        agent.ends_acknowledged(30)
    assert time.monotonic() - began < 9.0, "it did not wait for the sender to lose its patience"
    assert delivered(cloud.log()) == expected(range(60))


def test_a_full_lane_gives_up_the_oldest_tuples_and_the_receiver_says_how_many(cloud: Cloud, tmp_path: Path) -> None:
    count = 500
    sender = cloud.agent(SENDER, sender_app(tmp_path, count, noise_bytes=300), **SMALL)
    sender.start()
    wait_until(lambda: len(read_journal(tmp_path / "journal")) == count, "the source has ended")
    time.sleep(3.0)  # and all of it has been written
    receiver = cloud.agent(RECEIVER, receiver_app(tmp_path)).start()
    for agent in (sender, receiver):
        agent.ends_acknowledged(30)
    [given_up] = [int(text) for text in re.findall(r"(\d+) tuples for other agents given up", sender.output())]
    log = cloud.log()
    assert 0 < given_up < count
    assert delivered(log) == expected(range(given_up, count))
    [gap] = gaps(log, RECEIVER)
    assert re.fullmatch(rf"given up by {SENDER}: \d+ messages of numbers with {given_up} tuples at most", gap.reason)


def test_a_full_lane_that_blocks_loses_nothing(cloud: Cloud, tmp_path: Path) -> None:
    count = 600
    app = sender_app(tmp_path, count, per_s=1_000, noise_bytes=300)
    sender = cloud.agent(SENDER, app, when_full="block", **SMALL)
    sender.start()
    wait_until(lambda: sender.status["sends"]["numbers"]["trouble"], "the lane is full")
    time.sleep(1.0)
    blocked = read_journal(tmp_path / "journal")
    time.sleep(1.5)
    assert len(blocked) < count and read_journal(tmp_path / "journal") == blocked, "the source waits"
    receiver = cloud.agent(RECEIVER, receiver_app(tmp_path)).start()
    for agent in (sender, receiver):
        agent.ends_acknowledged(40)
    log = cloud.log()
    assert delivered(log) == expected(range(count))
    assert not gaps(log, RECEIVER) and not gaps(log, SENDER)


def test_a_sender_that_is_stopped_says_so_and_the_receiver_waits_for_its_next_start(
    cloud: Cloud, tmp_path: Path
) -> None:
    app = sender_app(tmp_path, 300, per_s=150)
    sender, receiver = cloud.agent(SENDER, app).start(), cloud.agent(RECEIVER, receiver_app(tmp_path)).start()
    wait_until(lambda: len(read_journal(tmp_path / "journal")) > 50, "it runs")
    assert sender.stop() == 143
    assert "stopped by SIGTERM" in sender.output() and "all acknowledged" in sender.output()
    assert receiver.is_running
    stopped_at = len(read_journal(tmp_path / "journal"))
    sender.start()
    for agent in (sender, receiver):
        agent.ends_acknowledged(30)
    log = cloud.log()
    found = delivered(log)
    missing = {number for number, _ in expected(range(300))} - dict(found).keys()
    assert all(stopped_at - 3 < number <= stopped_at for number in missing), "only what the source had just begun with"
    assert len(dict(found)) == len(found)
    assert not gaps(log, SENDER)
    assert [len(list(entries(log, [Kind.END], agent))) for agent in (SENDER, RECEIVER)] == [2, 1]


def test_a_sender_that_waits_for_room_can_be_stopped_and_goes_on_later(cloud: Cloud, tmp_path: Path) -> None:
    app = sender_app(tmp_path, 600, per_s=1_000, noise_bytes=300)
    sender = cloud.agent(SENDER, app, drain_s=1.0, when_full="block", **SMALL).start()
    wait_until(lambda: sender.status["sends"]["numbers"]["trouble"], "the lane is full")
    assert sender.stop() == 143
    assert "not acknowledged yet" in sender.output()
    sender = cloud.agent(SENDER, app, when_full="block", **SMALL).start()
    receiver = cloud.agent(RECEIVER, receiver_app(tmp_path)).start()
    for agent in (sender, receiver):
        agent.ends_acknowledged(40)
    log = cloud.log()
    found = delivered(log)
    assert len(dict(found)) == len(found) > 100
    assert [gap.reason[:5] for gap in gaps(log, SENDER)] == ["crash"], "not all was on disk, and that is said"
