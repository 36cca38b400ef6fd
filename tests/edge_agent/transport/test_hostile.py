"""Whatever the network brings, a session neither fails nor grows."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.transport import State, Will
from protocol.mqttsn import MESSAGES, ConnAck, Disconnect, MessageType
from tests.edge_agent.transport.machine import Machine

_TYPES = sorted(int(kind) for kind in MessageType)


@st.composite
def _plausible(draw: st.DrawFn) -> bytes:
    """A datagram with a right length and a known type, and anything as its body."""
    body = draw(st.binary(max_size=12)) + draw(st.sampled_from([b"", b"a/b", b"ab", bytes(300)]))
    kind = draw(st.sampled_from(_TYPES))
    size = len(body) + 2
    return bytes((size, kind)) + body if size < 256 else b"\x01" + (size + 2).to_bytes(2, "big") + bytes((kind,)) + body


def _machine(state: State) -> Machine:
    machine = Machine(will=Will("a/b", b"gone"), max_topics=20)
    if state is State.IDLE:
        return machine
    machine.session.connect(machine.now)
    machine.sent()
    machine.publish("a/b", qos=2)
    machine.publish("ab", qos=1)
    machine.subscribe("a/#", 2)
    if state is State.CONNECTING:
        return machine
    machine.hear(ConnAck(0))
    if state is State.ASLEEP:
        machine.sleep(100, drain_s=0.0)
        machine.sent()
        machine.hear(Disconnect())
    elif state is State.WAITING:
        machine.hear(Disconnect())
    elif state is State.CLOSING:
        machine.session.close(0, machine.now)
        machine.sent()
    assert machine.state is state
    return machine


@settings(max_examples=150, deadline=None)
@given(
    state=st.sampled_from([State.IDLE, State.CONNECTING, State.CONNECTED, State.ASLEEP, State.WAITING, State.CLOSING]),
    datagrams=st.lists(st.one_of(st.binary(max_size=40), _plausible()), max_size=60),
)
def test_no_datagram_makes_a_session_fail_or_grow(state: State, datagrams: list[bytes]) -> None:
    machine = _machine(state)
    for datagram in datagrams:
        before = len(machine.session.datagrams)
        machine.session.receive(datagram, machine.now)
        assert len(machine.session.datagrams) <= before + 4, "an amplifier"
        machine.wait(0.05)
    stats = machine.session.stats()
    assert len(stats.malformed) < 20 and len(stats.unexpected) < 40
    assert stats.in_flight <= 2 and len(machine.session._requests.by_id) <= 8
    assert len(machine.session._book._names) <= 20


def test_every_message_type_has_a_handler_or_is_counted() -> None:
    machine = Machine().connected()
    handled = set(machine.session._handlers)
    assert {kind.__name__ for kind in set(MESSAGES) - handled} == {
        "SearchGw",
        "Connect",
        "WillTopic",
        "WillMsg",
        "Subscribe",
        "Unsubscribe",
        "WillTopicUpd",
        "WillMsgUpd",
    }
    machine.session.receive(b"\x03\x01\x00", machine.now)
    machine.session.receive(b"\x03\x01", machine.now)
    assert machine.session.stats().unexpected == {"searchgw from a gateway": 1}
    assert machine.session.stats().malformed == {"wrong length": 1}


def test_a_flood_of_copies_is_answered_one_for_one() -> None:
    machine = Machine().connected()
    for _ in range(10_000):
        machine.session.receive(b"\x04\x10\x00\x07", machine.now)
    assert len(machine.sent()) == 10_000
