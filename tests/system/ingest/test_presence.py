"""Who is there, as the API knows it from a real broker and a real gateway."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from collector.mqtt_link import MqttLink
from collector.presence import Presence
from protocol.mqttsn import Disconnect, PingReq, PingResp
from tests.system.conftest import NewDevice
from tests.system.ingest.site import eventually, in_thread, run, running
from threadline.lab import GatewayService, Mosquitto


class Watch:
    """An API process that is asked again and again."""

    def __init__(self, mosquitto: Mosquitto) -> None:
        self.link = MqttLink("127.0.0.1", mosquitto.port)
        self.presence = Presence(self.link, settle_s=2.0)

    async def sees(self, agent: str, state: str, reason: str | None = None) -> int | None:
        """Wait until it says so; returns since when."""
        await eventually(lambda: self._is(agent, state, reason), f"{agent} {state}")
        return self.presence.state_of(agent).since_ms

    @asynccontextmanager
    async def seeing(self, agent: str) -> AsyncIterator[list[str]]:
        """All states that it says meanwhile, each once as long as it lasts."""
        seen: list[str] = []

        def look() -> None:
            state = self.presence.state_of(agent).state
            if seen[-1:] != [state]:
                seen.append(state)

        async def keep_looking() -> None:
            while True:
                look()
                await asyncio.sleep(0)

        task = asyncio.create_task(keep_looking())
        try:
            yield seen
            look()  # whoever waited for a state may have seen it first
        finally:
            task.cancel()

    def _is(self, agent: str, state: str, reason: str | None) -> bool:
        found = self.presence.state_of(agent)
        return found.state == state and reason in (None, found.reason)


def test_agents_are_online_asleep_or_offline_as_the_gateway_sees_them(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice
) -> None:
    found = device(gateway, "presence-found").connect(clean=False)
    one = device(gateway, "presence-1")

    async def scenario() -> None:
        watch = Watch(mosquitto)
        async with running(watch.link):
            assert await watch.sees(found.client_id, "online") is None, "it was so before"
            await watch.sees(one.client_id, "unknown", "no gateway has seen it")
            one.connect(clean=False)
            begun = await watch.sees(one.client_id, "online")
            one.sleep(60)
            slept = await watch.sees(one.client_id, "asleep")
            assert begun is not None and slept is not None and begun <= slept
            one.connect(clean=False)
            await watch.sees(one.client_id, "online")
            one.disconnect()
            await watch.sees(one.client_id, "offline")
            assert {found.client_id, one.client_id} <= set(watch.presence.known())
        await watch.sees(one.client_id, "unknown", "no connection to the MQTT broker")

    run(scenario())


def test_a_gateway_that_is_killed_makes_its_agents_unknown_until_it_has_told_of_them_again(
    own_gateway: GatewayService, own_mosquitto: Mosquitto, device: NewDevice
) -> None:
    lasting = device(own_gateway, "lasting").connect(clean=False)
    sleeper = device(own_gateway, "sleeper").connect(clean=False)
    sleeper.sleep()
    lasting.send(PingReq())
    lasting.expect(PingResp)

    async def scenario() -> None:
        watch = Watch(own_mosquitto)
        async with running(watch.link):
            await watch.sees("lasting", "online")
            await watch.sees("sleeper", "asleep")
            async with watch.seeing("lasting") as of_lasting, watch.seeing("sleeper") as of_sleeper:
                await in_thread(own_gateway.kill)
                await watch.sees("lasting", "unknown", "the gateway is offline")
                await watch.sees("sleeper", "unknown", "the gateway is offline")
                await in_thread(own_gateway.start)
                await watch.sees("lasting", "offline")
                await watch.sees("sleeper", "asleep")
            assert of_lasting == ["online", "unknown", "offline"], "not online, though the broker had kept that"
            assert of_sleeper == ["asleep", "unknown", "asleep"]
            await in_thread(lambda: lasting.skip_to(Disconnect))
            lasting.connect(clean=False)
            await watch.sees("lasting", "online")

    run(scenario())


def test_while_the_broker_is_away_nothing_is_known_and_afterwards_all_is_true_again(
    own_gateway: GatewayService, own_mosquitto: Mosquitto, device: NewDevice
) -> None:
    device(own_gateway, "staying").connect(clean=False, keep_alive_s=60)
    leaving = device(own_gateway, "leaving").connect(clean=False)

    async def scenario() -> None:
        watch = Watch(own_mosquitto)
        async with running(watch.link):
            await watch.sees("staying", "online")
            await watch.sees("leaving", "online")
            async with watch.seeing("leaving") as of_leaving, watch.seeing("staying") as of_staying:
                await in_thread(own_mosquitto.stop)
                await watch.sees("staying", "unknown", "no connection to the MQTT broker")
                leaving.disconnect()
                os.kill(own_gateway.pid, signal.SIGSTOP)  # so that it is back later than the API
                await in_thread(own_mosquitto.start)
                await eventually(lambda: "leaving" in watch.presence.known(), "what the broker had kept")
                os.kill(own_gateway.pid, signal.SIGCONT)
                await watch.sees("leaving", "offline")
                await watch.sees("staying", "online")
            assert of_leaving == ["online", "unknown", "offline"], "not online, though the broker had kept that"
            assert of_staying == ["online", "unknown", "online"]

    run(scenario())
