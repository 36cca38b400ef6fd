from __future__ import annotations

import pickle

import pytest

from protocol.ranges import Ranges
from protocol.records import BEGINNING, END_OF_TIME, Gap, Lost
from protocol.row import Row
from protocol.wire.sections import Kind
from spark_jobs.fleet import Fleet
from spark_jobs.waiting import Waiting
from tests.spark_jobs.rows import (
    PACKER,
    end,
    gap,
    plan,
    progress,
    receive,
    received,
    register,
    retire,
    send,
    sink,
    source,
    window,
)
from tests.support.plain_state import PlainState

READINGS, SENT, ALERTS, OTHER = 1, 2, 3, 4
EDGE = (source("readings"), window("minutes", "readings", 60), send("minutes", "minutes", "hub"))
HUB = (receive("in", "edge", "minutes"), window("hours", "in", 3_600), sink("alerts", "hours"))
NAMES = [register(READINGS, "edge", "readings"), register(SENT, "edge", "minutes"), register(ALERTS, "hub", "alerts")]


def fleet_of(*rows: Row, state: PlainState | None = None) -> Fleet:
    """A fleet that was told the rows of one shard, then written and read again."""
    state = PlainState() if state is None else state
    fleet = Fleet.load(state)
    fleet.apply(0, rows)
    fleet.save(state)
    return Fleet.load(state)


def bounds(fleet: Fleet, *streams: int, waiting: Waiting | None = None) -> list[int]:
    frontiers = fleet.frontiers(waiting or Waiting())
    return [frontiers.bound(each) for each in streams]


def test_u_is_the_sum_of_the_windows_over_all_agents() -> None:
    fleet = fleet_of(*NAMES, plan("edge", *EDGE), plan("hub", *HUB), progress("hub", ALERTS, 10_000))
    assert fleet.reach(READINGS).sinks == {("hub", "alerts"): 3_660}
    assert fleet.reach(SENT).sinks == {("hub", "alerts"): 3_600}
    assert bounds(fleet, READINGS, SENT) == [10_000 - 3_660, 10_000 - 3_600]
    assert fleet.delay(SENT, ALERTS) == 3_600


def test_what_a_length_window_holds_back_counts_as_well() -> None:
    fleet = fleet_of(*NAMES, plan("edge", *EDGE), plan("hub", *HUB), progress("hub", ALERTS, 10_000, hold=4_000))
    assert bounds(fleet, READINGS) == [4_000 - 3_660]


def test_a_receiver_holds_everything_back_until_its_plan_is_there() -> None:
    state = PlainState()
    fleet = fleet_of(*NAMES, plan("edge", *EDGE), state=state)
    assert bounds(fleet, READINGS, SENT) == [BEGINNING, BEGINNING]
    fleet = fleet_of(plan("hub", *HUB), state=state)
    assert bounds(fleet, READINGS) == [BEGINNING], "it has not promised anything yet"
    fleet = fleet_of(progress("hub", ALERTS, 9_000), state=state)
    assert bounds(fleet, READINGS) == [9_000 - 3_660]


def test_a_receiver_whose_plan_does_not_receive_holds_nothing_back() -> None:
    fleet = fleet_of(*NAMES, plan("edge", *EDGE), plan("hub", source("own"), sink("alerts", "own")))
    assert bounds(fleet, READINGS, SENT) == [END_OF_TIME, END_OF_TIME]


def test_only_reachable_sinks_count() -> None:
    nodes = (source("a"), source("b"), sink("fast", "a"), window("w", "b", 5), sink("slow", "b"), sink("both", "w"))
    names = [register(number, "edge", name) for number, name in enumerate(("a", "b", "fast", "slow", "both"), 1)]
    told = [progress("edge", 3, 100), progress("edge", 4, 20), progress("edge", 5, 50)]
    assert bounds(fleet_of(*names, plan("edge", *nodes), *told), 1, 2) == [100, 20]


def test_waiting_references_hold_their_sink_back_even_if_it_is_closed() -> None:
    waiting = Waiting()
    waiting.add(ALERTS, 5_000, 5_000)
    rows = [*NAMES, plan("edge", *EDGE), plan("hub", *HUB), progress("hub", ALERTS, 10_000)]
    assert bounds(fleet_of(*rows), READINGS, waiting=waiting) == [5_000 - 3_660]
    taken = received("hub", "edge", "minutes", of=1)
    ended = fleet_of(*rows, taken, progress("hub", ALERTS, END_OF_TIME), end("hub"), end("edge"))
    assert bounds(ended, READINGS, waiting=waiting) == [5_000 - 3_660]
    assert bounds(ended, READINGS) == [END_OF_TIME]


def test_a_start_that_was_given_up_is_not_a_later_one_that_others_have_heard_of() -> None:
    fleet = fleet_of(*NAMES, plan("edge", *EDGE), register(9, "edge", "minutes", nonce=2), retire("edge"))
    assert fleet.is_retired(SENT)
    assert not fleet.is_retired(9)


def test_an_agent_that_was_stopped_is_waited_for_until_it_has_taken_all_or_is_given_up() -> None:
    rows = [*NAMES, plan("edge", *EDGE), plan("hub", *HUB), progress("hub", ALERTS, 10_000)]
    stopped = [*rows, end("hub")]
    assert bounds(fleet_of(*stopped), READINGS) == [10_000 - 3_660], "it may start again, and take what has come"
    assert bounds(fleet_of(*stopped, retire("hub")), READINGS) == [END_OF_TIME]
    assert bounds(fleet_of(*stopped, end("edge")), READINGS) == [10_000 - 3_660], "it has not taken all of it yet"
    assert bounds(fleet_of(*stopped, retire("edge")), READINGS) == [10_000 - 3_660]
    assert bounds(fleet_of(*stopped, end("edge"), retire("hub")), READINGS) == [END_OF_TIME]


@pytest.mark.parametrize("ending", [[], [end("hub")]])
def test_what_a_later_start_sends_may_be_older_than_its_receiver_has_promised_to_the_one_before(
    ending: list[Row],
) -> None:
    """The sender's clock went back. The receiver that runs would find it late; the next one takes it."""
    taken = received("hub", "edge", "minutes", of=1)
    again = [plan("edge", *EDGE, nonce=2), register(9, "edge", "minutes", nonce=2)]
    rows = [*NAMES, plan("edge", *EDGE), plan("hub", *HUB), taken, progress("hub", ALERTS, 10_000), *ending]
    assert bounds(fleet_of(*rows, again[0]), READINGS) == [10_000 - 3_660], "it has sent nothing"
    assert bounds(fleet_of(*rows, *again), READINGS, 9) == [BEGINNING] * 2
    heard = received("hub", "edge", "minutes", of=2)
    assert bounds(fleet_of(*rows, *again, heard), 9) == [10_000 - 3_600]
    assert bounds(fleet_of(*rows, *again, retire("edge", 2)), 9) == [10_000 - 3_600], "nothing more comes of it"


@pytest.mark.parametrize("ending", [[], [end("hub")]])
@pytest.mark.parametrize(
    "has_taken", [register(SENT, "edge", "minutes", by="hub"), received("hub", "edge", "minutes", of=1)]
)
def test_an_agent_that_has_come_to_the_end_has_taken_all_of_the_starts_that_it_has_heard_of(
    has_taken: Row, ending: list[Row]
) -> None:
    """Whatever was known of its senders when it ended: shards are not in step."""
    rows = [*NAMES, plan("edge", *EDGE), plan("hub", *HUB)]
    at_the_end = [progress("hub", ALERTS, END_OF_TIME), *ending]
    assert bounds(fleet_of(*rows, *at_the_end), READINGS) == [BEGINNING]
    assert bounds(fleet_of(*rows, has_taken, *at_the_end), READINGS) == [END_OF_TIME]
    again, sent = plan("edge", *EDGE, nonce=2), register(9, "edge", "minutes", nonce=2)
    for told in ([*rows, has_taken, *at_the_end, again], [*rows, again, has_taken, *at_the_end]):
        assert bounds(fleet_of(*told), READINGS) == [BEGINNING], "nothing of the second start"
        assert bounds(fleet_of(*told, end("edge", 2)), READINGS) == [END_OF_TIME], "which has sent nothing"
        gone = [*told, sent, end("edge", 2)]
        assert bounds(fleet_of(*gone), READINGS, 9) == [BEGINNING] * 2, "what it has sent waits for the hub"
        assert bounds(fleet_of(*gone, retire("hub")), READINGS, 9) == [END_OF_TIME] * 2
        taken = [received("hub", "edge", "minutes", of=2, nonce=2), progress("hub", 10, END_OF_TIME, nonce=2)]
        back = [*gone, plan("hub", *HUB, nonce=2), register(10, "hub", "alerts", nonce=2), *taken]
        assert bounds(fleet_of(*back), READINGS, 9) == [END_OF_TIME] * 2
        assert bounds(fleet_of(*back, end("hub", 2)), READINGS, 9) == [END_OF_TIME] * 2


def test_what_one_start_has_taken_the_next_one_need_not_take() -> None:
    rows = [*NAMES, plan("edge", *EDGE), plan("hub", *HUB), received("hub", "edge", "minutes", of=1), end("edge")]
    killed = [*rows, plan("hub", *HUB, nonce=2), register(9, "hub", "alerts", nonce=2)]
    assert bounds(fleet_of(*killed), READINGS) == [BEGINNING]
    ended = [progress("hub", 9, END_OF_TIME, nonce=2), end("hub", 2)]
    assert bounds(fleet_of(*killed, *ended), READINGS) == [END_OF_TIME]


def test_what_is_taken_of_one_send_says_nothing_of_another() -> None:
    edge = (source("readings"), send("a", "readings", "hub"), send("b", "readings", "hub"))
    hub = (receive("in-a", "edge", "a"), receive("in-b", "edge", "b"), sink("ka", "in-a"), sink("kb", "in-b"))
    names = [register(1, "edge", "readings"), register(2, "edge", "a"), register(3, "hub", "ka")]
    rows = [*names, plan("edge", *edge), plan("hub", *hub), register(4, "hub", "kb"), progress("hub", 4, 50)]
    ended = [received("hub", "edge", "a", of=1), progress("hub", 3, END_OF_TIME), end("edge")]
    again = [plan("edge", *edge, nonce=2), register(5, "edge", "a", nonce=2), received("hub", "edge", "b", of=2)]
    assert bounds(fleet_of(*rows, *ended), 2) == [END_OF_TIME]
    assert bounds(fleet_of(*rows, *ended, *again), 5) == [BEGINNING]


def test_a_sender_that_has_ended_and_is_given_up_is_not_waited_for() -> None:
    """The receiver goes on: it has other things to do."""
    rows = [*NAMES, plan("edge", *EDGE), plan("hub", *HUB), received("hub", "edge", "minutes", of=1)]
    again = [end("edge"), plan("edge", *EDGE, nonce=2), register(9, "edge", "minutes", nonce=2), end("edge", 2)]
    told = [*rows, progress("hub", ALERTS, END_OF_TIME), *again]
    assert bounds(fleet_of(*told), READINGS) == [BEGINNING]
    assert bounds(fleet_of(*told, retire("edge", 2)), READINGS) == [END_OF_TIME]
    assert bounds(fleet_of(*told, retire("edge", 2), plan("edge", *EDGE, nonce=3)), READINGS) == [BEGINNING]


def test_a_sender_that_sends_no_more_is_not_waited_for() -> None:
    rows = [*NAMES, plan("edge", *EDGE), plan("hub", *HUB), received("hub", "edge", "minutes", of=1)]
    other = plan("edge", source("readings"), sink("log", "readings"), nonce=2)
    assert bounds(fleet_of(*rows, progress("hub", ALERTS, END_OF_TIME), other), SENT) == [END_OF_TIME]


def test_an_agent_that_was_stopped_is_given_up_though_it_has_spoken_since() -> None:
    """`threadline-agent send` is a start without a plan."""
    rows = [*NAMES, plan("edge", *EDGE), plan("hub", *HUB), progress("hub", ALERTS, 10_000), end("hub")]
    spoken = [*rows, register(9, "hub", "notes", nonce=2), end("hub", 2)]
    assert bounds(fleet_of(*spoken), READINGS) == [10_000 - 3_660]
    assert bounds(fleet_of(*spoken, retire("hub", 2)), READINGS) == [END_OF_TIME]


def test_a_receiver_with_a_plan_that_cannot_be_read_is_waited_for_also_if_it_was_stopped() -> None:
    unread = Row(Kind.PLAN, "hub", 2, 0, b"\xff")
    rows = [*NAMES, plan("edge", *EDGE), plan("hub", *HUB), progress("hub", ALERTS, 10_000), unread, end("hub", 2)]
    assert bounds(fleet_of(*rows), READINGS) == [BEGINNING]
    again = [plan("hub", *HUB, nonce=3), register(9, "hub", "alerts", nonce=3), progress("hub", 9, 20_000, nonce=3)]
    assert bounds(fleet_of(*rows, *again), READINGS) == [20_000 - 3_660]
    assert bounds(fleet_of(*rows, retire("hub", 2)), READINGS) == [END_OF_TIME]


def test_a_plan_that_was_wrong_does_not_hold_what_comes_after_it() -> None:
    wrong = (source("readings"), window("minutes", "readings", 60), send("minutes", "minutes", "hbu"))
    state = PlainState()
    hub = [plan("hub", *HUB), progress("hub", ALERTS, 10_000)]
    right = [plan("edge", *EDGE, nonce=2), register(9, "edge", "readings", nonce=2)]
    fleet = fleet_of(*NAMES, plan("edge", *wrong), *right, *hub, state=state)
    assert bounds(fleet, READINGS, 9) == [BEGINNING, 10_000 - 3_660]
    fleet = fleet_of(plan("edge", *EDGE, nonce=3), state=state)
    assert bounds(fleet, READINGS, 9) == [BEGINNING, 10_000 - 3_660], "also when its start is over"


def test_a_plan_that_comes_back_does_not_hide_the_one_in_between() -> None:
    """What the first start has sent to others, and was not taken, the second one sends on as its own plan says."""
    edge = (source("readings"), send("minutes", "readings", "hub"))
    first = (receive("in", "edge", "minutes"), window("w", "in", 1_000), send("days", "w", "lab"))
    second = (receive("in", "edge", "minutes"), window("w", "in", 10), send("days", "w", "other"))
    lab = (receive("in", "hub", "days"), sink("alarms", "in"))
    plans = [plan("edge", *edge), plan("lab", *lab), plan("other", *lab)]
    plans += [plan("hub", *nodes, nonce=nonce) for nonce, nodes in enumerate((first, second, first), 1)]
    fleet = fleet_of(register(1, "edge", "readings"), register(2, "hub", "days"), *plans)
    assert fleet.reach(1).sinks == {("lab", "alarms"): 1_000, ("other", "alarms"): 1_000}
    assert fleet.reach(2).sinks == {("lab", "alarms"): 0, ("other", "alarms"): 0}


def test_the_plan_of_a_receiver_counts_until_nothing_is_left_of_its_start() -> None:
    slow = (receive("in", "edge", "minutes"), window("days", "in", 86_400), sink("alerts", "days"))
    rows = [*NAMES, plan("edge", *EDGE), plan("hub", *slow), plan("hub", *HUB, nonce=2)]
    fleet = fleet_of(*rows, register(9, "hub", "alerts", nonce=2), progress("hub", 9, 100_000, nonce=2))
    assert bounds(fleet, READINGS) == [100_000 - 86_460]
    assert list(fleet.forget(lambda _: True)) == [ALERTS]
    assert bounds(fleet, READINGS) == [100_000 - 3_660]


def test_a_start_of_which_only_others_have_spoken_may_go_anywhere() -> None:
    """Until it speaks, or a later one does, or the agent is given up."""
    rows = [*NAMES, plan("edge", *EDGE), plan("hub", *HUB), progress("hub", ALERTS, 10_000)]
    named = [*rows, end("edge"), register(9, "edge", "readings", nonce=2, by="hub")]
    assert bounds(fleet_of(*rows), READINGS) == [10_000 - 3_660]
    assert bounds(fleet_of(*named), READINGS) == [BEGINNING]
    for after in (plan("edge", *EDGE, nonce=2), register(10, "edge", "minutes", nonce=3), retire("edge", nonce=2)):
        assert bounds(fleet_of(*named, after), READINGS) == [10_000 - 3_660]


def test_a_start_of_which_only_others_have_spoken_is_over_when_a_later_one_speaks() -> None:
    rows = [*NAMES, plan("edge", *EDGE), register(9, "edge", "minutes", nonce=2, by="hub")]
    assert fleet_of(*rows).watermark(9) == BEGINNING
    assert fleet_of(*rows, register(10, "edge", "minutes", nonce=3)).watermark(9) == END_OF_TIME


def test_the_order_in_which_shards_tell_of_starts_does_not_matter() -> None:
    """The hub names the second start when the third has spoken already: nothing will come of it."""
    rows = [*NAMES, plan("edge", *EDGE), register(10, "edge", "minutes", nonce=3)]
    late = [*rows, register(9, "edge", "minutes", nonce=2, by="hub")]
    assert fleet_of(*late).watermark(9) == END_OF_TIME
    told = [plan("edge", *EDGE, nonce=3), plan("hub", *HUB), progress("hub", ALERTS, 10_000)]
    heard = received("hub", "edge", "minutes", of=3)
    assert bounds(fleet_of(*late, *told, heard), READINGS) == [10_000 - 3_660]


def test_counts_of_different_disks_say_nothing_about_which_start_came_first() -> None:
    """The old card's third start speaks late: the first of the new one, which the hub has named, is still to come. Once
    that has spoken, nothing more is expected of the old card."""
    old, new = 1 << 40, 2 << 40
    rows = [*NAMES, register(9, "edge", "minutes", nonce=new + 1, by="hub")]
    late = [*rows, register(10, "edge", "minutes", nonce=old + 3)]
    assert fleet_of(*late).watermark(9) == BEGINNING
    both = [*late, register(9, "edge", "minutes", nonce=new + 1)]
    assert fleet_of(*both, register(11, "edge", "minutes", nonce=old + 4, by="hub")).watermark(11) == END_OF_TIME
    assert fleet_of(*both, register(11, "edge", "minutes", nonce=new + 2, by="hub")).watermark(11) == BEGINNING


def test_the_starts_of_a_reflashed_agent_are_told_apart_as_it_counts_them_itself() -> None:
    """The cloud counts one more: it knew another card. Start 3, which the hub has named, is not over when 2 speaks."""
    third = Row(Kind.REGISTER, "hub", 1, 0, PACKER.encode([9, "edge", 3, "minutes", 30]))
    rows = [*NAMES, plan("edge", *EDGE), third]
    second = Row(Kind.REGISTER, "edge", 20, 0, PACKER.encode([10, "edge", 3, "minutes", 20, 2]))
    fourth = Row(Kind.REGISTER, "edge", 40, 0, PACKER.encode([11, "edge", 5, "minutes", 40, 4]))
    assert fleet_of(*rows, second).watermark(9) == BEGINNING
    assert fleet_of(*rows, second, fourth).watermark(9) == END_OF_TIME


def test_nobody_waits_for_a_start_of_an_agent_that_was_given_up_after_it_had_ended() -> None:
    rows = [*NAMES, plan("edge", *EDGE), plan("hub", *HUB), progress("hub", ALERTS, 10_000), end("edge")]
    named = register(9, "edge", "minutes", nonce=2, by="hub")
    assert bounds(fleet_of(*rows, named), READINGS) == [BEGINNING]
    assert bounds(fleet_of(*rows, named, retire("edge")), READINGS) == [10_000 - 3_660]


def test_chains_of_agents_that_were_stopped_are_found_however_many_there_are() -> None:
    """Each sends to each that comes after it: there are more ways than anybody could walk."""
    count = 40
    names = [f"a{place}" for place in range(count)]
    rows = [plan("a0", source("r"), send("s", "r", *names[1:]), nonce=2)]
    for place, name in enumerate(names[1:], 1):
        taken = [receive(f"from-{sender}", sender, "s") for sender in names[:place]]
        kept = [sink(f"k-{sender}", f"from-{sender}") for sender in names[:place]]
        rows.append(plan(name, *taken, *kept, send("s", "from-a0", *names[place + 1 :], "nobody")))
        rows += [register(100 * place + each, name, f"k-a{each}") for each in range(place)]
        rows += [progress(name, 100 * place + each, END_OF_TIME) for each in range(place)]
        rows += [register(100 * place + 99, name, "s"), progress(name, 100 * place + 99, END_OF_TIME)]
        rows.append(received(name, "a1", "s", of=1))
    rows += [end(name) for name in names[1:]]
    assert len(fleet_of(*rows).frontiers(Waiting()).sinks) == count * (count - 1) // 2
    assert fleet_of(*rows, end("a0", 2)).frontiers(Waiting()).sinks == {}


def test_what_waits_survives_packing() -> None:
    waiting, read = Waiting(), Waiting()
    waiting.add(7, 5, 6)
    waiting.add(7, 9, 2)
    waiting.add(3, END_OF_TIME, BEGINNING)
    read.read(waiting.packed())
    assert read == waiting
    assert read.hold == {3: END_OF_TIME, 7: 5}
    assert read.oldest == {3: BEGINNING, 7: 2}


# Starts that follow one another


def test_a_new_start_opens_its_sinks_anew_and_closes_the_old_ones() -> None:
    state = PlainState()
    fleet_of(*NAMES, plan("edge", *EDGE), plan("hub", *HUB), progress("hub", ALERTS, 10_000), state=state)
    fleet = fleet_of(plan("hub", *HUB, nonce=2), state=state)
    assert bounds(fleet, READINGS) == [BEGINNING]
    assert fleet.is_over(ALERTS)
    again = [register(OTHER, "hub", "alerts", nonce=2), progress("hub", OTHER, 8_000, nonce=2)]
    assert bounds(fleet_of(*again, state=state), READINGS) == [8_000 - 3_660]


def test_a_plan_that_is_told_again_changes_nothing() -> None:
    rows = [*NAMES, plan("edge", *EDGE), plan("hub", *HUB), progress("hub", ALERTS, 10_000)]
    assert bounds(fleet_of(*rows, plan("hub", *HUB)), READINGS) == [10_000 - 3_660]


def test_a_sink_that_was_given_up_holds_nothing_back_until_it_returns() -> None:
    state = PlainState()
    fleet_of(*NAMES, plan("edge", *EDGE), plan("hub", *HUB), progress("hub", ALERTS, 4_000), state=state)
    fleet = fleet_of(retire("hub"), state=state)
    assert fleet.is_retired(ALERTS)
    assert not fleet.is_over(ALERTS)
    assert bounds(fleet, READINGS) == [END_OF_TIME]
    fleet = fleet_of(progress("hub", ALERTS, 5_000), state=state)
    assert not fleet.is_retired(ALERTS)
    assert bounds(fleet, READINGS) == [5_000 - 3_660]


def test_a_start_that_was_cut_short_is_given_up_with_a_later_one_that_had_no_plan() -> None:
    """`threadline-agent send` has ended, and could not tell how the start before it had ended."""
    rows = [*NAMES, plan("edge", *EDGE), plan("hub", *HUB), progress("hub", ALERTS, 10_000), end("hub", 2)]
    assert bounds(fleet_of(*rows), READINGS) == [10_000 - 3_660]
    fleet = fleet_of(*rows, retire("hub", 2))
    assert fleet.is_retired(ALERTS)
    assert bounds(fleet, READINGS) == [END_OF_TIME]


def test_a_receiver_that_was_given_up_before_it_had_a_plan_is_not_waited_for() -> None:
    assert bounds(fleet_of(*NAMES, plan("edge", *EDGE), retire("hub")), READINGS) == [END_OF_TIME]


def test_a_start_that_was_cut_short_is_over() -> None:
    fleet = fleet_of(*NAMES, plan("edge", *EDGE), gap("edge", Gap("killed", 1, 1, next_event=0), nonce=2))
    assert fleet.is_over(SENT)
    assert fleet.watermark(SENT) == END_OF_TIME


def test_lost_tuples_of_a_send() -> None:
    told = Gap("spool full", 1, 1, tuples=(Lost("minutes", 3, 5), Lost("readings", 1, 2)))
    fleet = fleet_of(*NAMES, plan("edge", *EDGE), gap("edge", told))
    assert fleet.lost(SENT) == Ranges([3], [5])
    assert fleet.lost(READINGS) == Ranges()


def test_a_gap_says_at_once_of_which_streams() -> None:
    fleet = Fleet.load(PlainState())
    fleet.apply(0, [*NAMES, plan("edge", *EDGE), gap("edge", Gap("lost", 1, 1, tuples=(Lost("minutes", 3, 5),)))])
    assert fleet.newly_lost == {SENT}


# Odd plans


def test_agents_that_send_in_a_circle_hold_their_streams_for_ever() -> None:
    rows = [register(1, "a", "s"), register(2, "a", "x"), register(3, "c", "t"), register(4, "b", "y")]
    rows.append(
        plan("a", source("s"), receive("in", "b", "y"), sink("k", "in"), send("x", "s", "b"), send("z", "in", "b"))
    )
    rows.append(
        plan("b", receive("in", "a", "x"), receive("back", "a", "z"), send("y", "in", "a"), send("w", "back", "a"))
    )
    fleet = fleet_of(*rows)
    assert fleet.reach(1).sinks == {("a", "k"): 0}, "to and fro is no circle"
    loop = plan("b", receive("in", "a", "z"), send("y", "in", "a"), nonce=2)
    assert bounds(fleet_of(*rows, loop), 4) == [BEGINNING]


def test_what_is_known_does_not_depend_on_what_was_asked_first() -> None:
    """A circle, but for the plans: the second one of a does not send to b."""
    first = (source("s"), send("x", "s", "b"))
    second = (receive("in", "b", "y"), send("x", "in", "c"))
    rows = [
        *(register(number, agent, name) for number, agent, name in ((1, "a", "x"), (2, "b", "y"))),
        *(plan("a", *first), plan("a", *second, nonce=2)),
        plan("b", receive("in", "a", "x"), send("y", "in", "a")),
        plan("c", receive("in", "a", "x"), sink("k", "in")),
    ]
    assert bounds(fleet_of(*rows), 1, 2) == [*reversed(bounds(fleet_of(*rows), 2, 1))]


@pytest.mark.parametrize("number", [READINGS, 99])
def test_streams_of_which_no_plan_tells_are_held(number: int) -> None:
    assert bounds(fleet_of(*NAMES), number) == [BEGINNING]


def test_a_stream_that_no_plan_tells_of_is_let_go_when_its_start_is_over() -> None:
    assert bounds(fleet_of(*NAMES, end("edge")), READINGS) == [END_OF_TIME]


def test_a_plan_that_cannot_be_read_stops_nobody() -> None:
    fleet = fleet_of(*NAMES, Row(Kind.PLAN, "edge", 1, 0, b"\xff\xff"), plan("hub", *HUB))
    assert bounds(fleet, READINGS) == [BEGINNING]


def test_many_ways_through_many_agents_are_found_quickly() -> None:
    rows = [register(1, "a0", "s")]
    count = 40
    for number in range(count):
        name, to = f"a{number}", f"a{number + 1}"
        ins = [source("s")] if not number else [receive(f"in{k}", f"a{number - 1}", f"x{k}") for k in (0, 1)]
        nodes = [*ins]
        for k in (0, 1):
            of = "s" if not number else f"in{k}"
            nodes.append(send(f"x{k}", of, to) if number < count - 1 else sink(f"x{k}", of))
        if number:
            nodes.append(sink("both", "in0"))
        rows.append(plan(name, *nodes))
    assert len(fleet_of(*rows).reach(1).sinks) == count - 1 + 2


def test_a_chain_that_is_longer_than_anybody_would_make_it_is_held() -> None:
    rows = [register(1, "a0", "s"), register(2, "a799", "x")]
    for number in range(800):
        of = source("s") if not number else receive("in", f"a{number - 1}", "x")
        rows.append(plan(f"a{number}", of, send("x", of.name, f"a{number + 1}")))
    fleet = fleet_of(*rows)
    assert bounds(fleet, 1) == [BEGINNING]
    assert fleet.is_unbounded(2)


# Snapshots


def snapshot(agent: str, nonce: int, plan_row: Row | None, own: dict[str, int], **flags: bool) -> Row:
    told = {
        "agent": agent,
        "epoch": 1,
        "nonce": nonce,
        "next_seq": 5,
        "next_event": 0,
        "next_seqs": {},
        "own_streams": own,
        "other_streams": [[SENT, "edge", 1, "minutes"]],
        "plan": plan_row.data if plan_row else b"",
        "ended": False,
        "retired": False,
    }
    return Row(Kind.SNAPSHOT, agent, nonce, 5, PACKER.encode({**told, **flags}))


def test_a_reader_that_begins_later_knows_what_is_in_force() -> None:
    rows = [
        snapshot("edge", 1, plan("edge", *EDGE), {"readings": READINGS, "minutes": SENT}),
        snapshot("hub", 1, plan("hub", *HUB), {"alerts": ALERTS}),
        progress("hub", ALERTS, 10_000),
    ]
    assert bounds(fleet_of(*rows), READINGS) == [10_000 - 3_660]


def test_a_reader_that_begins_later_does_not_wait_for_an_agent_that_was_stopped_and_given_up() -> None:
    edge = snapshot("edge", 1, plan("edge", *EDGE), {"readings": READINGS, "minutes": SENT})
    hub = (plan("hub", *HUB), {"alerts": ALERTS})
    assert bounds(fleet_of(edge, snapshot("hub", 1, *hub, ended=True)), READINGS) == [BEGINNING]
    assert bounds(fleet_of(edge, snapshot("hub", 1, *hub, ended=True, retired=True)), READINGS) == [END_OF_TIME]


def test_a_later_snapshot_of_the_same_shard_is_no_news() -> None:
    state = PlainState()
    fleet_of(*NAMES, plan("edge", *EDGE), plan("hub", *HUB), progress("hub", ALERTS, 10_000), state=state)
    fleet_of(plan("hub", *HUB, nonce=2), progress("hub", ALERTS, 10_000, nonce=2), state=state)
    fleet = fleet_of(snapshot("hub", 1, plan("hub", *HUB), {"alerts": ALERTS}), state=state)
    assert fleet.is_over(ALERTS)


# Starts that are forgotten


def test_what_is_forgotten_is_over_and_reaches_nobody() -> None:
    state = PlainState()
    fleet = fleet_of(*NAMES, plan("edge", *EDGE), plan("hub", *HUB), plan("edge", *EDGE, nonce=2), state=state)
    assert list(fleet.forget(lambda number: number == SENT)) == [SENT], "the other one is needed"
    fleet.save(state)
    again = [register(SENT, "edge", "minutes"), progress("edge", SENT, 5), progress("edge", READINGS, 5)]
    fleet = fleet_of(*again, state=state)
    assert fleet.is_over(SENT) and fleet.watermark(SENT) == END_OF_TIME
    assert SENT in fleet.gone and READINGS not in fleet.gone
    assert bounds(fleet, SENT) == [END_OF_TIME]
    assert not fleet.forget(lambda _: True), "the other one has returned"


def test_a_stream_that_is_known_again_does_not_make_its_start_older() -> None:
    notes = register(9, "edge", "notes", nonce=2)
    sent = [plan("edge", *EDGE, nonce=2), notes, register(10, "edge", "minutes", nonce=2), plan("edge", *EDGE, nonce=3)]
    rows = [*NAMES, plan("edge", *EDGE), plan("hub", *HUB), received("hub", "edge", "minutes", of=1)]
    fleet = fleet_of(*rows, progress("hub", ALERTS, END_OF_TIME), *sent, end("edge", 3))
    assert bounds(fleet, READINGS) == [BEGINNING]
    gone = fleet.forget(lambda number: number == 9)
    fleet.recall(9, gone[9])
    assert bounds(fleet, READINGS) == [BEGINNING]


def test_a_stream_that_is_known_again_goes_where_it_went() -> None:
    rows = [*NAMES, plan("edge", *EDGE), plan("hub", *HUB), progress("hub", ALERTS, 10_000)]
    fleet = fleet_of(*rows, *(plan("edge", *EDGE, nonce=nonce) for nonce in range(2, 30)))
    before = bounds(fleet, READINGS)
    gone = fleet.forget(lambda _: True)
    assert set(gone) == {READINGS, SENT}
    fleet.recall(READINGS, gone[READINGS])
    assert fleet.is_over(READINGS) and READINGS not in fleet.gone and SENT in fleet.gone
    assert bounds(fleet, READINGS) == before
    assert fleet.forget(lambda _: True) == {READINGS: gone[READINGS]}


def test_starts_that_only_capture_leave_nothing_behind() -> None:
    """They have neither plan nor streams: alone, or under the name of an agent that has some at other times."""
    state = PlainState()
    fleet_of(*NAMES, plan("edge", *EDGE), plan("hub", *HUB), state=state).save(state)
    sizes = []
    for begin in range(100, 1_000, 100):
        fleet = Fleet.load(state)
        fleet.apply(0, [end(name, each) for each in range(begin, begin + 100) for name in ("edge", f"job-{each}")])
        fleet.forget(lambda _: False)
        fleet.save(state)
        sizes.append(len(state.get("fleet", 0) or b""))
    assert max(sizes[1:]) <= sizes[0] + 100, sizes


def test_an_agent_that_was_stopped_is_not_forgotten_and_nor_is_one_that_was_given_up() -> None:
    """But for one to which nobody sends anything: nobody waits for it."""
    rows = [*NAMES, plan("edge", *EDGE), plan("hub", *HUB)]
    assert not fleet_of(*rows, end("hub")).forget(lambda _: True)
    assert not fleet_of(*rows, retire("edge")).forget(lambda _: True)
    assert list(fleet_of(*rows, end("edge")).forget(lambda _: True)) == [READINGS, SENT]
    fleet = fleet_of(*rows, end("hub"), plan("hub", *HUB, nonce=2))
    assert list(fleet.forget(lambda _: True)) == [ALERTS]


def test_a_checkpoint_from_before_ranges_had_moved_can_be_read() -> None:
    assert pickle.loads(b"cspark_jobs.ranges\nRanges\n.") is Ranges
