"""Exactly-once receipt of QoS 2."""

from __future__ import annotations

from edge_agent.transport.inbox import REMEMBER, Inbox
from protocol.mqttsn import ConnAck, Connect, Disconnect, PubComp, Publish, PubRec, PubRel, SubAck
from tests.edge_agent.transport.machine import Machine
from tests.edge_agent.transport.test_requests import subscribed


def subscriber(clean: bool = False) -> Machine:
    machine = Machine(clean=clean).connected()
    subscribed(machine, "a/b", topic_id=5, qos=2)
    return machine


def payloads(machine: Machine) -> list[bytes]:
    return [message.payload for message in machine.received]


def test_a_message_is_delivered_at_its_first_copy_and_released_later() -> None:
    machine = subscriber()
    assert machine.hear(Publish(0, 5, 7, b"1", 2)) == [PubRec(7)]
    assert payloads(machine) == [b"1"]
    assert machine.hear(PubRel(7)) == [PubComp(7)]
    assert payloads(machine) == [b"1"]


def test_copies_are_answered_but_delivered_once() -> None:
    machine = subscriber()
    copy = Publish(0, 5, 7, b"1", 2)
    assert machine.hear(copy, copy) == [PubRec(7), PubRec(7)]
    assert machine.hear(PubRel(7), PubRel(7)) == [PubComp(7), PubComp(7)]
    assert payloads(machine) == [b"1"]
    assert machine.session.stats().duplicates == 1


def test_a_copy_delayed_past_the_end_of_the_exchange_is_not_delivered_again() -> None:
    machine = subscriber()
    copy = Publish(0, 5, 7, b"1", 2)
    machine.hear(copy, PubRel(7))
    machine.wait(9)
    assert machine.hear(copy) == [PubRec(7)]
    assert payloads(machine) == [b"1"]


def test_an_id_used_again_for_other_content_is_a_new_message() -> None:
    machine = subscriber()
    machine.hear(Publish(0, 5, 7, b"1", 2), PubRel(7), Publish(0, 5, 7, b"2", 2), PubRel(7))
    machine.hear(Publish(0, 5, 7, b"3", 2), Publish(0, 5, 7, b"4", 2))
    assert payloads(machine) == [b"1", b"2", b"3", b"4"]


def test_the_same_id_and_content_long_after_is_a_new_message() -> None:
    machine = subscriber()
    copy = Publish(0, 5, 7, b"1", 2)
    machine.hear(copy, PubRel(7))
    machine.now += 11
    machine.hear(copy)
    assert payloads(machine) == [b"1", b"1"]


def test_the_release_of_an_unknown_id_is_confirmed() -> None:
    assert subscriber().hear(PubRel(123)) == [PubComp(123)]


def test_a_copy_after_a_reconnect_is_known_even_under_a_new_topic_id() -> None:
    machine = subscriber()
    machine.hear(Publish(0, 5, 7, b"1", 2))
    machine.hear(Disconnect())
    machine.until(Connect)
    (subscribe,) = machine.hear(ConnAck(0))
    machine.hear(SubAck(66, subscribe.msg_id, 0, 2))  # type: ignore[union-attr]
    assert machine.hear(Publish(0, 66, 7, b"1", 2, dup=True)) == [PubRec(7)]
    assert payloads(machine) == [b"1"]


def test_a_clean_session_remembers_nothing_of_the_one_before() -> None:
    machine = subscriber(clean=True)
    machine.hear(Publish(0, 5, 7, b"1", 2))
    machine.hear(Disconnect())
    machine.until(Connect)
    (subscribe,) = machine.hear(ConnAck(0))
    machine.hear(SubAck(5, subscribe.msg_id, 0, 2))  # type: ignore[union-attr]
    machine.hear(Publish(0, 5, 7, b"1", 2))
    assert payloads(machine) == [b"1", b"1"]


def test_memory_is_bounded_whatever_comes() -> None:
    inbox = Inbox()
    for msg_id in range(1, 5_000):
        assert inbox.is_new(msg_id, "a", b"1", 0.0)
        if msg_id % 2:
            inbox.released(msg_id, 0.0)
    assert len(inbox._open) <= REMEMBER and len(inbox._ended) <= REMEMBER
