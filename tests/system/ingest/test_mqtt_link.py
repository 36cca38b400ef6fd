"""The connection of an API process: who listens, how many may, and what happens to topics that nobody needs."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from collector import mqtt_link
from collector.mqtt_link import Busy, MqttLink
from tests.system.ingest.site import eventually, run, running
from threadline.lab import Mosquitto


def test_no_more_listen_than_may_and_topics_that_nobody_needs_make_room(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt_link, "MOST_LISTENERS", 2)
    monkeypatch.setattr(mqtt_link, "MOST_TOPICS", 2)

    async def scenario() -> None:
        heard: list[bytes] = []
        async with running(MqttLink("127.0.0.1", mosquitto.port)) as link:
            async with AsyncExitStack() as stack:
                for name in ("a", "b"):
                    await stack.enter_async_context(link.listening(f"link/{name}", heard.append))
                with pytest.raises(Busy, match="2 requests wait for an answer already"):
                    await stack.enter_async_context(link.listening("link/a", heard.append))
                await link.publish("link/a", b"first", 5)
                await eventually(lambda: heard == [b"first"], "what was published")
            for name in ("c", "d", "e", "a"):
                async with link.listening(f"link/{name}", heard.append):
                    await link.publish(f"link/{name}", name.encode(), 5)
                    await eventually(lambda: heard[-1:] == [name.encode()], name)  # noqa: B023
            await link.publish("link/a", b"to nobody", 5)
            async with link.listening("link/a", heard.append):
                await link.publish("link/a", b"last", 5)
                await eventually(lambda: heard[-1:] == [b"last"], "what was published last")
            assert heard == [b"first", b"c", b"d", b"e", b"a", b"last"]

    run(scenario())


def test_all_who_listen_to_one_topic_hear_it(mosquitto: Mosquitto) -> None:
    async def scenario() -> None:
        one: list[bytes] = []
        other: list[bytes] = []
        async with running(MqttLink("127.0.0.1", mosquitto.port)) as link, link.listening("link/x", one.append):
            async with link.listening("link/x", other.append):
                await link.publish("link/x", b"both", 5)
                await eventually(lambda: one == other == [b"both"], "both to hear it")
            await link.publish("link/x", b"one", 5)
            await eventually(lambda: one == [b"both", b"one"], "one to hear it")
        assert other == [b"both"]

    run(scenario())
