"""A gateway whose state folder takes nothing for a while: it says so, takes no more memory, and goes on by itself."""

from __future__ import annotations

from resource import RLIM_INFINITY, RLIMIT_FSIZE, prlimit

from protocol.mqttsn import ConnAck, Connect, Disconnect, PingReq, PingResp, ReturnCode
from tests.support.waiting import wait_until
from tests.system.conftest import NewDevice
from tests.system.scrape import scrape
from threadline.lab import GatewayService


def test_devices_are_told_of_congestion_until_the_state_can_be_written_again(
    own_gateway: GatewayService, device: NewDevice
) -> None:
    sleeper, another = device(own_gateway, "sleeper"), device(own_gateway, "another")
    sleeper.connect(clean=False)
    prlimit(own_gateway.pid, RLIMIT_FSIZE, (0, RLIM_INFINITY))
    for _ in range(200):
        sleeper.send(Disconnect(600))
    wait_until(lambda: scrape(own_gateway).value("state_unwritten"), "what cannot be written")
    wait_until(lambda: scrape(own_gateway).value("datagrams_received") >= 201, "all of them")
    assert scrape(own_gateway).value("state_unwritten") < 10
    another.send(Connect("another", 60))
    assert another.expect(ConnAck).return_code == ReturnCode.CONGESTION
    prlimit(own_gateway.pid, RLIMIT_FSIZE, (RLIM_INFINITY, RLIM_INFINITY))
    wait_until(lambda: not scrape(own_gateway).value("state_unwritten"), "the state to be written")
    wait_until(lambda: scrape(own_gateway).value("mqtt_connected"), "the gateway to serve again")
    another.connect()
    own_gateway.kill()
    own_gateway.start()
    sleeper.send(PingReq("sleeper"))
    sleeper.skip_to(PingResp)
