"""Numbers of streams and epochs: dense, unique, the same for all who ask, and never taken back."""

from __future__ import annotations

import resource
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import collector.registry
from collector.registry import (
    MOST_STREAMS,
    ClosedEpoch,
    Epoch,
    Registry,
    RegistryDamaged,
    RegistryFull,
    RegistryMissing,
    RegistryUnavailable,
    RegistryView,
    StreamName,
    StreamNumber,
    registry_fault,
)

NONCE = 2**64 - 1


def stream(name: str, agent: str = "car-7", nonce: int = NONCE) -> StreamName:
    return StreamName(agent, nonce, 3, name)


def stored(path: Path) -> list[tuple[object, ...]]:
    """What another process would find."""
    with sqlite3.connect(path) as db:
        return db.execute("SELECT * FROM streams ORDER BY number").fetchall()


# Streams


def test_numbers_are_dense_and_stay(tmp_path: Path) -> None:
    path = tmp_path / "log" / "registry.db"
    registry = Registry(path)
    assert registry.number_of(stream("reports")) == StreamNumber(1, is_new=True)
    assert registry.number_of(stream("reports")) == StreamNumber(1, is_new=False)
    asked = [stream("alerts"), stream("reports"), stream("alerts"), stream("reports", nonce=0)]
    assert registry.numbers_of(asked) == {asked[0]: (2, True), asked[1]: (1, False), asked[3]: (3, True)}
    registry.close()
    registry = Registry(path)
    assert registry.numbers_of(asked) == {asked[0]: (2, False), asked[1]: (1, False), asked[3]: (3, False)}
    assert registry.number_of(stream("reports", agent="car-8")) == (4, True)
    registry.close()


@pytest.mark.parametrize("nonce", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_any_nonce_of_64_bits_is_its_own(tmp_path: Path, nonce: int) -> None:
    registry = Registry(tmp_path / "registry.db")
    others = [stream("s", nonce=each) for each in (0, 1, 2**63 - 1, 2**63, 2**64 - 1) if each != nonce]
    registry.numbers_of(others)
    assert registry.number_of(stream("s", nonce=nonce)) == (5, True)
    registry.close()
    registry = Registry(tmp_path / "registry.db")
    assert registry.number_of(stream("s", nonce=nonce)) == (5, False)
    registry.close()


def test_a_stream_known_from_a_reference_is_the_same_under_another_epoch(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry.db")
    assert registry.number_of(stream("s")) == (1, True)
    assert registry.number_of(stream("s")._replace(epoch=4)) == (1, False)
    registry.close()


def test_what_was_answered_is_on_disk(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry.db")
    registry.number_of(stream("reports"))
    assert stored(tmp_path / "registry.db") == [(1, "car-7", -1, 3, "reports")]
    assert registry._db.execute("PRAGMA synchronous").fetchone() == (2,)
    registry.close()


def test_what_was_answered_once_is_answered_from_memory(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry.db")
    registry.numbers_of([stream("a"), stream("b")])
    registry.epoch_of("car-7", 1, 0)
    registry._db.close()
    assert registry.numbers_of([stream("b"), stream("a")]) == {stream("b"): (2, False), stream("a"): (1, False)}
    assert registry.epoch_of("car-7", 1, 0) == Epoch(0, False)


def test_when_numbers_run_out_none_of_those_asked_for_is_given(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    registry = Registry(path)
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO streams VALUES (?, 'a', 0, 0, 'last but one')", (MOST_STREAMS - 1,))
    with pytest.raises(RegistryFull, match="134217727"):
        registry.numbers_of([stream("x"), stream("y")])
    assert len(stored(path)) == 1
    assert registry.number_of(stream("y")) == (MOST_STREAMS, True)
    with pytest.raises(RegistryFull):
        registry.number_of(stream("x"))
    assert registry.number_of(stream("y")) == (MOST_STREAMS, False)
    registry.close()


# Epochs


def test_an_epoch_is_shown_as_the_agent_counts_it(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry.db")
    assert [registry.epoch_of("a", nonce, nonce + 5) for nonce in range(3)] == [(5, False), (6, False), (7, False)]
    assert registry.epoch_of("b", 1, 5) == (5, False)
    assert registry.epoch_of("a", 77, 2) == (2, False)  # an older start that was heard of later
    registry.close()


def test_a_card_that_was_written_again_gets_numbers_that_are_free(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    registry = Registry(path, clock_ms=lambda: 1234)
    for counter in range(3):
        registry.epoch_of("a", counter, counter)
    wanted = [Epoch(3, True), Epoch(4, True), Epoch(5, True), Epoch(6, False), Epoch(7, False)]
    assert [registry.epoch_of("a", NONCE - counter, counter) for counter in range(5)] == wanted
    registry.close()
    registry = Registry(path)
    assert [registry.epoch_of("a", NONCE - counter, counter) for counter in range(5)] == wanted
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT DISTINCT first_seen_ms FROM epochs").fetchall() == [(1234,)]
    registry.close()


# Errors


def test_a_locked_registry_gives_nothing_and_may_be_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    registry = Registry(path, wait_s=0.05)
    registry.number_of(stream("known"))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(RegistryUnavailable, match=r"registry\.db: database is locked"):
        registry.numbers_of([stream("known"), stream("new")])
    with pytest.raises(RegistryUnavailable):
        registry.epoch_of("car-7", 1, 1)
    assert registry.number_of(stream("known")) == (1, False)
    other.execute("ROLLBACK")
    assert registry.number_of(stream("new")) == (2, True)
    assert registry.epoch_of("car-7", 1, 1) == (1, False)
    registry.close()


def ask_on_a_full_disk(path: Path) -> None:
    registry = Registry(path)
    registry.number_of(stream("first"))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size_bytes = path.with_name("registry.db-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes + 100, hard))
    asked = [stream(f"s{number}") for number in range(500)]
    for _ in range(2):
        with pytest.raises(RegistryUnavailable):
            registry.numbers_of(asked)
    assert registry.number_of(stream("first")) == (1, False)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert len(stored(path)) == 1
    assert [each.number for each in registry.numbers_of(asked).values()] == list(range(2, 502))
    registry.close()


def test_a_full_disk_gives_nothing_and_may_be_asked_again(tmp_path: Path) -> None:
    process = get_context("spawn").Process(target=ask_on_a_full_disk, args=(tmp_path / "registry.db",))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert len(stored(tmp_path / "registry.db")) == 501


def test_a_file_that_is_no_registry_is_told(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    path.write_bytes(b"this is no database at all" * 100)
    with pytest.raises(RegistryDamaged, match="not a database"):
        Registry(path)
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=7")
    with pytest.raises(RegistryDamaged, match=r"another version \(7\)"):
        Registry(path)


def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RegistryUnavailable, match=r"the folder .*/file cannot be made: File exists"):
        Registry(tmp_path / "file" / "registry.db")


def test_a_path_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "registry.db").mkdir()
    begun = time.monotonic()
    with pytest.raises(RegistryUnavailable, match=r"registry\.db: cannot be opened for writing"):
        Registry(tmp_path / "registry.db")
    assert time.monotonic() - begun < 5


def test_a_registry_that_is_gone_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    with pytest.raises(RegistryMissing, match=r"is not there, though .* Put it back from a copy, or begin a new log"):
        Registry(path, may_create=False)
    assert not path.exists()
    path.touch()
    with pytest.raises(RegistryMissing, match="is empty, though"):
        Registry(path, may_create=False)
    path.unlink()
    Registry(path).close()
    Registry(path, may_create=False).close()


def test_no_number_is_given_by_a_registry_that_was_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    registry = Registry(path)
    registry.number_of(stream("a"))
    path.rename(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(RegistryUnavailable, match="deleted or moved while in use"):
            registry.number_of(stream("b"))
        path.touch()  # another file in its place is no better
    (tmp_path / "elsewhere").rename(path)
    assert registry.number_of(stream("b")) == (2, True)
    registry.close()


# What is kept in memory


def test_memory_is_bounded_and_answers_stay_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector.registry, "MOST_NUMBERS_KEPT", 10)
    monkeypatch.setattr(collector.registry, "MOST_EPOCHS_KEPT", 3)
    registry = Registry(tmp_path / "registry.db")
    registry._db.execute("PRAGMA synchronous=OFF")
    streams = [stream(f"s-{number}") for number in range(40)]
    first = registry.numbers_of(streams)
    for each in streams:
        registry.epoch_of(each.name, 1, 7)
        registry.number_of(streams[0])
    assert (len(registry._numbers), len(registry._epochs)) == (10, 3)
    assert registry._numbers.get(("car-7", NONCE, "s-0")) == 1, "what is asked for often stays"
    again = registry.numbers_of(streams)
    assert {each: number for each, (number, _) in again.items()} == {
        each: number for each, (number, _) in first.items()
    }
    assert not any(is_new for _, is_new in again.values())
    assert {registry.epoch_of(each.name, 1, 0) for each in streams} == {Epoch(7, False)}
    registry.close()


def test_a_registry_is_looked_at_without_touching_it_while_others_write(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    assert "registry.db is not there" in registry_fault(path)
    registry = Registry(path)
    for number in range(20):
        registry.number_of(stream(f"s{number}"))
        assert registry_fault(path) == ""
    registry.close()
    content = path.read_bytes()
    assert registry_fault(path) == "" and path.read_bytes() == content
    with sqlite3.connect(path, isolation_level=None) as db:  # as of a version without sums
        db.execute("DROP TABLE sums")
        db.execute("PRAGMA user_version=1")
    assert registry_fault(path) == ""
    with sqlite3.connect(path, isolation_level=None) as db:
        db.execute("PRAGMA user_version=99")
    assert registry_fault(path) == f"{path}: written by another version (99)"


def test_a_registry_is_looked_at_where_nothing_can_be_written(tmp_path: Path) -> None:
    """SQLite wants to make files beside it."""
    path = tmp_path / "registry.db"
    registry = Registry(path)
    registry.epoch_of("car-7", NONCE, 3)
    registry.close()
    (tmp_path / "registry.db-wal").mkdir()
    assert registry_fault(path) == ""
    with closing(RegistryView(path)) as view:
        assert view.agents() == ["car-7"]


def test_what_people_want_to_know_is_read_while_others_write(tmp_path: Path) -> None:
    path = tmp_path / "a folder?#%" / "registry.db"
    view = RegistryView(path)
    assert (view.epoch_of("car-7", NONCE), view.agents()) == (None, [])
    view.close()
    registry = Registry(path)
    registry.epoch_of("car-7", NONCE, 3)
    view = RegistryView(path)
    assert (view.epoch_of("car-7", NONCE), view.epoch_of("car-7", 1), view.agents()) == (3, None, ["car-7"])
    registry.close_epochs([ClosedEpoch("car-7", NONCE, 3, 99), ClosedEpoch("car-8", 1, 4, 5)])
    assert sorted(view.agents()) == sorted(registry.agents()) == ["car-7", "car-8"]
    assert (registry.closed_epoch("car-7", NONCE), registry.closed_epoch("car-8", 1)) == ((3, 99), (4, 5))
    view.close()
    registry.close()


# Several at once


def ask(path: Path, number: int, told: Connection) -> None:
    """Ask for streams that all ask for, in another order, and for some of one's own."""
    told.recv()
    registry = Registry(path)
    answers = {}
    for round_ in range(15):
        shared = [stream(f"shared-{(number * 7 + round_ * 4 + each) % 60}") for each in range(4)]
        for name, (given_number, _) in registry.numbers_of([*shared, stream(f"own-{number}-{round_}")]).items():
            answers[name] = given_number
    told.send((answers, registry.epoch_of("car-7", number, 0)))
    registry.close()


def test_processes_agree(tmp_path: Path) -> None:
    context = get_context("spawn")
    pipes = [context.Pipe() for _ in range(4)]
    processes = [
        context.Process(target=ask, args=(tmp_path / "registry.db", number, told))
        for number, (_, told) in enumerate(pipes)
    ]
    for each in processes:
        each.start()
    for asking, _ in pipes:
        asking.send("go")
    heard = [asking.recv() for asking, _ in pipes]
    for each in processes:
        each.join(30)
    numbers: dict[StreamName, int] = {}
    for answers, _ in heard:
        for name, number in answers.items():
            assert numbers.setdefault(name, number) == number
    assert sorted(numbers.values()) == list(range(1, len(numbers) + 1))
    assert len(numbers) == 60 + 4 * 15
    epochs = [epoch for _, epoch in heard]
    assert sorted(epochs) == [(0, False), (1, True), (2, True), (3, True)]


def test_threads_agree(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry.db")
    everybody = threading.Barrier(4)

    def run(thread: int) -> list[tuple[StreamName, StreamNumber]]:
        everybody.wait(10)
        answers: list[tuple[StreamName, StreamNumber]] = []
        for round_ in range(10):
            asked = [stream(f"shared-{round_}-{each}") for each in range(10)]
            asked += [stream(f"own-{thread}-{round_}-{each}") for each in range(10)]
            answers += registry.numbers_of(asked).items()
        return answers

    with ThreadPoolExecutor(4) as threads:
        answers = [answer for each in threads.map(run, range(4)) for answer in each]
    registry.close()
    assert {answer.number for _, answer in answers} == set(range(1, 501))
    assert len({(name, answer.number) for name, answer in answers}) == 500
    assert sum(answer.is_new for _, answer in answers) == 500


def register_until_killed(path: Path, told: Connection) -> None:
    registry = Registry(path)
    (last,) = registry._db.execute("SELECT coalesce(max(number), 0) FROM streams").fetchone()
    while True:
        names = [stream(f"s{last + more}") for more in (1, 2, 3)]
        last += 3
        told.send(registry.numbers_of(names))


def test_a_killed_process_has_told_no_number_that_is_not_kept(tmp_path: Path) -> None:
    context = get_context("spawn")
    path = tmp_path / "registry.db"
    told_numbers: dict[StreamName, int] = {}
    for rounds in (3, 20, 9):
        hearing, told = context.Pipe()
        process = context.Process(target=register_until_killed, args=(path, told))
        process.start()
        told.close()
        for _ in range(rounds):
            told_numbers.update({name: answer.number for name, answer in hearing.recv().items()})
        process.kill()
        process.join()
        try:
            while True:
                told_numbers.update({name: answer.number for name, answer in hearing.recv().items()})
        except (EOFError, OSError):
            pass
    registry = Registry(path)
    assert {name: answer.number for name, answer in registry.numbers_of(told_numbers).items()} == told_numbers
    rows = stored(path)
    assert [row[0] for row in rows] == list(range(1, len(rows) + 1))
    assert len(rows) % 3 == 0
    registry.close()
