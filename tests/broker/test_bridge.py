"""What the bridge keeps in mind between the machine and the broker; what it does over a connection is a system test."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from broker.bridge import Bridge
from broker.journal import Journal, SqliteJournal
from broker.mqtt_connection import Broker
from broker.outputs import MqttPublish
from tests.support.machine import Machine
from threadline.lab import free_port

PACKET_ID_NOT_FOUND = 0x92


def bridge(journal: Journal) -> Bridge:
    return Bridge(Machine().gateway, Broker("127.0.0.1", 1), journal, lambda: None)


def test_a_publish_the_broker_has_forgotten_is_still_to_be_acknowledged() -> None:
    async def drain() -> None:
        between = bridge(Journal())
        between._in_flight[7] = MqttPublish("a/b", b"p", 2, False)
        between._is_up = True
        draining = asyncio.create_task(between.drain(10))
        await asyncio.sleep(0)
        between._published(7, PACKET_ID_NOT_FOUND)
        await asyncio.sleep(0)
        assert between.unacknowledged == 1
        assert not draining.done()
        between._in_flight[8] = between._queue.popleft()
        between._published(8, 0)
        await draining

    asyncio.run(drain())


def test_message_ids_of_a_session_the_broker_has_forgotten_are_forgotten_for_good(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path)
    journal.save_received(1, b"digest")
    journal.commit()
    between = bridge(journal)
    assert between._recent == {1: b"digest"}
    between._downlink_up(session_present=False)
    assert between._recent == {}
    journal.commit()
    assert journal.received() == {}
    journal.close()


def test_that_the_broker_is_away_is_told_once_until_that_changes(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    where = f"broker=127.0.0.1:{port}"

    def told() -> list[str]:
        return [
            each.getMessage() for each in caplog.records if "mqtt " in each.getMessage() and each.levelno > logging.INFO
        ]

    async def try_for(between: Bridge, seconds: float) -> None:
        between.start()
        await asyncio.sleep(seconds)
        await between.stop()

    between = Bridge(Machine().gateway, Broker("127.0.0.1", port), Journal(), lambda: None)
    asyncio.run(try_for(between, 0.8))
    assert len(told()) == 1, told()
    assert told()[0].startswith(f"mqtt unreachable {where} error=")
    between._trouble(f"mqtt silent {where}")
    between._trouble(f"mqtt silent {where}")
    assert len(told()) == 2
    between._uplink.is_up = between._downlink.is_up = True
    between._both_up()
    between._trouble(f"mqtt silent {where}")
    assert len(told()) == 3
