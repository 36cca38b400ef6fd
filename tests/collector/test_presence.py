"""Whether an agent is there: never online when that is not known. Real brokers and gateways are in tests/system."""

from __future__ import annotations

import pytest

from collector import presence as presence_module
from collector.mqtt_link import MqttLink
from collector.presence import SETTLE_S, Presence, State
from protocol.topics import state_topic


class Link(MqttLink):
    """A link whose connection is there when the test says so."""

    connected = True

    def __init__(self) -> None:
        super().__init__("127.0.0.1", 1)

    @property
    def is_up(self) -> bool:
        return self.connected


class Told:
    """A presence, what it is told, and its clock."""

    def __init__(self) -> None:
        self.link = Link()
        self.now = 100.0
        self.presence = Presence(self.link, clock=lambda: self.now, clock_ms=lambda: int(self.now * 1000))

    def found(self, *clients: tuple[str, str], gateway: str = "online") -> None:
        """What a broker has retained, all of it."""
        self.gateway(gateway, retained=True)
        for client, state in clients:
            self.hears(client, state, retained=True)
        self.presence.told()

    def hears(self, client: str, state: str, retained: bool = False) -> None:
        self.presence.hear(state_topic(client), state.encode(), retained)

    def gateway(self, state: str, name: str = "gw-1", retained: bool = False) -> None:
        self.presence.hear(f"tl-gateway/{name}/state", state.encode(), retained)

    def lose(self) -> None:
        self.link.connected = False
        self.presence.lost()

    def state(self, agent: str = "car-7") -> str:
        return self.presence.state_of(agent).state

    def reason(self, agent: str = "car-7") -> str | None:
        found = self.presence.state_of(agent)
        assert found.state == "unknown" and found.since_ms is None
        return found.reason


@pytest.fixture
def told() -> Told:
    return Told()


def test_without_a_broker_nothing_is_known() -> None:
    assert Presence(None).state_of("car-7") == State("unknown", None, "the API has no MQTT broker")


def test_until_all_retained_states_have_come_nothing_is_known(told: Told) -> None:
    told.gateway("online", retained=True)
    told.hears("car-7", "online", retained=True)
    assert told.reason() == "the MQTT broker has not told all states yet"
    told.presence.told()
    assert told.presence.state_of("car-7") == State("online")


@pytest.mark.parametrize("state", ["online", "asleep", "offline"])
def test_a_state_that_was_found_has_no_beginning_and_one_that_changed_has(told: Told, state: str) -> None:
    told.found(("car-7", state))
    assert told.presence.state_of("car-7") == (state, None, None)
    other = "asleep" if state == "online" else "online"
    told.now = 200.0
    told.hears("car-7", other)
    assert told.presence.state_of("car-7") == (other, 200_000, None)
    told.now = 300.0
    told.hears("car-7", other)
    assert told.presence.state_of("car-7") == (other, 200_000, None), "told again, it has not changed"


def test_an_agent_that_no_gateway_has_seen_is_unknown(told: Told) -> None:
    told.found(("car-7", "online"))
    assert told.reason("car-8") == "no gateway has seen it"
    told.hears("car-7", "")
    assert told.reason("car-7") == "no gateway has seen it", "it was taken back"


def test_while_the_connection_is_away_nothing_is_known(told: Told) -> None:
    told.found(("car-7", "online"))
    told.lose()
    assert told.reason() == "no connection to the MQTT broker"
    told.link.connected = True
    assert told.reason() == "the MQTT broker has not told all states yet"


def test_while_no_gateway_is_online_nothing_is_known(told: Told) -> None:
    told.found(("car-7", "online"), gateway="offline")
    assert told.reason() == "the gateway is offline"
    told.gateway("online", name="gw-2", retained=True)
    assert told.state() == "online", "nobody knows whose it is, so any gateway will do"
    told.gateway("", name="gw-2")
    told.gateway("", name="gw-1")
    assert told.reason() == "no gateway is known to the MQTT broker"


def test_a_gateway_that_is_back_is_given_time_to_say_what_has_changed(told: Told) -> None:
    told.found(("car-7", "online"), ("car-8", "asleep"))
    told.gateway("offline")
    told.now += 1
    told.gateway("online")
    assert told.reason("car-7") == told.reason("car-8") == "the gateway, or the MQTT broker, has just come back"
    told.hears("car-7", "offline")
    assert told.state("car-7") == "offline", "it has said so"
    told.now += SETTLE_S
    assert told.state("car-8") == "asleep", "it has had the time to say otherwise"


def test_a_broker_that_is_back_is_not_believed_before_the_gateway_may_be_back_too(told: Told) -> None:
    told.found(("car-7", "online"))
    told.lose()
    told.link.connected = True
    told.found(("car-7", "online"))
    told.now += SETTLE_S - 1
    assert told.reason() == "the gateway, or the MQTT broker, has just come back"
    told.gateway("online")
    told.now += SETTLE_S - 1
    assert told.state() == "unknown", "the gateway is back only since then"
    told.now += 1
    assert told.state() == "online"


def test_clients_that_are_no_agents_are_known_by_their_own_names(told: Told) -> None:
    names = ["a/+b#ü", "Pump 7", "car-7", "100%"]
    told.found(*[(name, "online") for name in names])
    assert told.presence.known() == sorted(names)
    assert all(told.state(name) == "online" for name in names)


@pytest.mark.parametrize(
    ("topic", "payload"),
    [
        ("tl/3/car-7/state", b"online"),  # of another shard
        (state_topic("car-7"), b"busy"),
        (state_topic("car-7"), b"\xff"),
        (f"{state_topic('a b').replace('%20', ' ')}", b"online"),
        (f"tl/{state_topic('x').split('/')[1]}/%zz/state", b"online"),
    ],
)
def test_what_no_gateway_says_is_counted_and_changes_nothing(told: Told, topic: str, payload: bytes) -> None:
    assert topic != state_topic("car-7") or payload != b"online"
    told.found()
    told.presence.hear(topic, payload, False)
    assert told.presence.known() == []
    assert told.presence.not_understood == 1


def test_no_more_clients_are_kept_than_there_is_room_for(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence_module, "MOST_CLIENTS", 2)
    told.found(("a", "online"), ("b", "online"), ("c", "online"))
    assert told.presence.known() == ["a", "b"]
    assert told.presence.not_kept == 1
    assert "it is not among those that are kept" in str(told.reason("c"))
    told.hears("b", "offline")
    assert told.state("b") == "offline"


def test_gateways_are_told_by_name(told: Told) -> None:
    told.found(gateway="online")
    told.gateway("offline", name="a")
    assert told.presence.gateways() == {"a": "offline", "gw-1": "online"}
