"""Compares the log with what programs say that they captured: everything once, in order, or named as missing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from collector.log_view import Entry, entries
from collector.log_view import check as verify
from protocol.records import End, Gap
from protocol.wire.sections import Kind
from tests.support.journaled_app import Life, told
from tests.system.delivery.site import App

SCHEDULING_S = 0.3
"""How much later than its flush interval an agent on a busy machine may write a record."""


@dataclass(slots=True)
class Account:
    """What was found in the log of one program."""

    events: int = 0
    named_missing: int = 0
    lost_at_kills: int = 0
    lost_with_cards: int = 0
    crashes: int = 0


def check_log(folder: Path) -> None:
    """What `threadline log verify` does has nothing to say against it."""
    lines = list(verify(folder))
    faults = [line for line, is_fault in lines if is_fault]
    assert lines and not faults, "\n".join(faults)


def logged(folder: Path, app: App) -> list[Entry]:
    """What the log holds of what the program's agent has sent."""
    return [entry for entry in entries(folder, agent=app.settings.name) if entry.kind < Kind.SNAPSHOT]


def check(
    folder: Path,
    app: App,
    busy_s: float = SCHEDULING_S,
    wiped: Collection[int] = (),
    namesakes: Sequence[App] = (),
) -> Account:
    """Everything that the program has captured is in the log, once and in order, but for what a Gap names and what was
    younger than the flush interval at a kill, or by `busy_s` older. AssertionError says what is wrong.

    With its lives `wiped`, the program has lost its spool: of what was in that, the last part may be missing. Nobody
    but itself and its `namesakes` speaks in its name."""
    check_log(folder)
    lives = app.lives()
    nonces = {life.nonce for life in lives}
    of_its_name = logged(folder, app)
    known = nonces.union(life.nonce for each in namesakes for life in each.lives())
    strangers = sorted({entry.nonce for entry in of_its_name} - known)
    assert not strangers, f"somebody else speaks in the name of {app.settings.name}: {strangers}"
    found = [entry for entry in of_its_name if entry.nonce in nonces]
    account = Account()
    _check_order_of_epochs(found, lives)
    for index, life in enumerate(lives):
        _check_batches(found, life)
        end = _check_life(found, life, app, account)
        if _is_on_lost_card(found, lives, index, wiped):
            account.lost_with_cards += life.returned - min(end, life.returned)
            continue
        killed_at_ns = app.killed_at_ns.get(index)
        crashes = [entry for entry in found if _is_crash_of(entry, life.nonce)]
        if killed_at_ns is None:
            assert not crashes, f"a crash that was none: {crashes}"
            assert end == len(life.captured) == life.returned, f"only {end} of {len(life.captured)} are in the log"
            assert any(entry.nonce == life.nonce and isinstance(entry.record, End) for entry in found), "it has no end"
            continue
        _check_crash(found, crashes, end, lives[index + 1].nonce)
        account.crashes += 1
        missing = [each for each in life.captured[end:] if each.after_ns is not None]
        account.lost_at_kills += len(missing)
        allowed_s = 0.0 if app.settings.durable else app.settings.flush_s + busy_s
        ages_s = [(killed_at_ns - (each.after_ns or 0)) / 1e9 for each in missing]
        assert not missing or max(ages_s) < allowed_s, f"lost {len(missing)} events, the oldest {max(ages_s):.3f} s old"
    return account


def _is_on_lost_card(found: Sequence[Entry], lives: Sequence[Life], index: int, wiped: Collection[int]) -> bool:
    """Whether a life was the last of which anything has left its spool before that was lost."""
    last = min((each for each in wiped if each >= index), default=None)
    if last is None:
        return False
    later = {life.nonce for life in lives[index + 1 : last + 1]}
    return not any(entry.nonce in later for entry in found)


def _check_batches(found: Sequence[Entry], life: Life) -> None:
    """Each batch is in the log or named as missing. A Gap stands in the place of the batches that it names."""
    mine = [entry for entry in found if entry.nonce == life.nonce]
    there = {entry.seq for entry in mine if entry.kind is not Kind.GAP}
    ranges = [gap.batches for gap in gaps_of(found, life.nonce) if gap.batches is not None]
    named = [seq for first, last in ranges for seq in range(first, last + 1)]
    assert named == sorted(set(named)), "named once, in order"
    assert there.isdisjoint(named), f"batches that are there and named as missing: {sorted(there.intersection(named))}"
    everything = there.union(named, (entry.seq for entry in mine))
    assert everything == set(range(len(everything))), f"batches without a word: {sorted(everything)}"


def _check_life(found: Sequence[Entry], life: Life, app: App, account: Account) -> int:
    """The events of one epoch. Returns the number after the last one that is known."""
    events = [entry.record for entry in found if entry.nonce == life.nonce and entry.kind is Kind.EVENT]
    numbers = [event.number for event in events]
    named = [gap.events for gap in gaps_of(found, life.nonce) if gap.events is not None]
    missing = [number for first, last in named for number in range(first, last + 1)]
    assert numbers == sorted(set(numbers)), "in order, nothing twice"
    assert missing == sorted(set(missing)), "named once, in order"
    end = len(numbers) + len(missing)
    assert sorted(numbers + missing) == list(range(end)), _difference(numbers, missing)
    assert end <= len(life.captured), "more than was captured"
    for event in events:
        captured = life.captured[event.number]
        assert event == told(captured, event.ts, app.pad), f"{event} is not {captured}"
    account.events += len(events)
    account.named_missing += len(missing)
    return end


def _difference(numbers: list[int], missing: list[int]) -> str:
    there, named = set(numbers), set(missing)
    everything = set(range(max([*there, *named], default=-1) + 1))
    return f"neither there nor named: {sorted(everything - there - named)}, both: {sorted(there & named)}"


def gaps_of(found: Sequence[Entry], nonce: int) -> list[Gap]:
    """What will never come of an epoch, except the news that it crashed."""
    gaps = [entry.record for entry in found if entry.kind is Kind.GAP]
    return [gap for gap in gaps if gap.nonce == nonce and not gap.reason.startswith("crash")]


def _is_crash_of(entry: Entry, nonce: int) -> bool:
    return entry.kind is Kind.GAP and entry.record.nonce == nonce and entry.record.reason.startswith("crash")


def _check_crash(found: Sequence[Entry], crashes: Sequence[Entry], end: int, successor: int) -> None:
    """Told at the beginning of the next epoch, with the number of the first event that nobody knows. Once; but if that
    beginning was given up, what stands in its place tells it, be it another epoch's, and what stands in the place of
    that one tells it again."""
    given_up = any(gap.reason.startswith("dropped: the spool") for gap in gaps_of(found, successor))
    assert len(crashes) == 1 or (given_up and crashes), f"the crash is told {len(crashes)} times"
    for crash in crashes:
        place = crash.nonce, crash.seq
        assert place == (successor, 0) or given_up, f"the crash is not what its successor begins with: {crash}"
        known = crash.record.next_event
        assert known == end, f"the log ends before event {end}, the gap says {known}"


def _check_order_of_epochs(found: Sequence[Entry], lives: Sequence[Life]) -> None:
    order = {life.nonce: index for index, life in enumerate(lives)}
    places = [order[entry.nonce] for entry in found]
    assert places == sorted(places), "older epochs come before newer ones"
