"""From a real log to a recording server: everything arrives, once if nothing fails, and in order of each agent."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from collector.forwarding import (
    Forwarder,
    ForwardingError,
    ForwardOptions,
    PositionInUse,
    PositionUnusable,
    Request,
)
from collector.log_view import Entry, entries
from protocol.events import Event
from protocol.wire.sections import Kind
from tests.collector.agents import FakeAgent
from tests.collector.forwarding.captured import WrittenLog, in_batches, tuples_of, workflow_of
from tests.collector.forwarding.graphs import expected, told
from tests.collector.forwarding.recording import DROP, RecordingServer
from tests.support.waiting import wait_until
from threadline.lab import free_port

PI, PUMP = FakeAgent("pi-1", nonce=7, epoch=1), FakeAgent("pump-7", nonce=2**63 + 9, epoch=2)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[WrittenLog]:
    with WrittenLog(tmp_path / "log") as made:
        for batch in in_batches(workflow_of(6), 3):
            made.say(PI, *batch)
        made.say(PUMP, *tuples_of(PUMP, 6))
        yield made


def options(log: WrittenLog, url: str, to: str = "prov-json", **more: Any) -> ForwardOptions:
    position = more.pop("position", log.folder.parent / "position")
    return ForwardOptions(log.folder, to, url, position, **more)


def forward_once(log: WrittenLog, server: RecordingServer, to: str = "prov-json", **more: Any) -> dict[str, float]:
    with closing(Forwarder(options(log, server.url, to, once=True, **more))) as forwarder:
        forwarder.run()
        return forwarder.totals()


@contextmanager
def running(made: ForwardOptions) -> Iterator[Forwarder]:
    """A forwarder in a thread, which is stopped at the end."""
    with closing(Forwarder(made)) as forwarder:
        thread = threading.Thread(target=forwarder.run)
        thread.start()
        try:
            yield forwarder
        finally:
            forwarder.stop()
            thread.join()


def is_complete(log: WrittenLog, server: RecordingServer) -> bool:
    return told(each.body for each in server.taken) == expected(entries(log.folder))


@pytest.mark.parametrize("most_rows", [1, 500])
def test_everything_arrives_once_when_nothing_fails(log: WrittenLog, most_rows: int) -> None:
    with RecordingServer() as server:
        totals = forward_once(log, server, most_rows=most_rows)
        assert is_complete(log, server)
        documents = [each.body for each in server.received]
        assert len(set(documents)) == len(documents) == totals["requests"]
        assert (totals["records"], totals["skipped"]) == (len(list(entries(log.folder, TOLD))), 2)
        assert totals["lag_seconds"] == 0
        assert forward_once(log, server)["requests"] == 0, "it was forwarded already"


TOLD = (Kind.PLAN, Kind.SOURCE, Kind.DELIVERY, Kind.EVENT, Kind.END)


def test_it_follows_the_log_while_it_is_written(log: WrittenLog) -> None:
    with RecordingServer() as server, running(options(log, server.url)):
        wait_until(lambda: is_complete(log, server), "what was there has arrived")
        log.say(FakeAgent("pi-2", nonce=1), *workflow_of(2))
        wait_until(lambda: is_complete(log, server), "what came later has arrived")


def test_it_goes_on_where_it_was_stopped(log: WrittenLog) -> None:
    with RecordingServer() as server:
        with running(options(log, server.url)):
            wait_until(lambda: is_complete(log, server), "what was there has arrived")
        before = len(server.received)
        log.say(PI, *workflow_of(1, "evaluation")[:1])
        with running(options(log, server.url)):
            wait_until(lambda: is_complete(log, server), "what came later has arrived")
        (last,) = server.received[before:]
        assert "tl:workflow:pi-1@1:0" in last.json["agent"]
        assert last.json.keys() == {"prefix", "agent", "actedOnBehalfOf"}


def test_a_server_that_fails_and_drops_gets_everything_in_the_end(log: WrittenLog) -> None:
    answers = {0: 503, 1: DROP, 3: 429}
    with RecordingServer(lambda count, _: answers.get(count, 200)) as server:
        totals = forward_once(log, server, most_rows=3)
        assert is_complete(log, server)
    assert (totals["retried"], totals["refused"]) == (3, 0)


def test_what_one_request_is_refused_for_does_not_keep_the_others(log: WrittenLog) -> None:
    with RecordingServer(lambda count, _: 400 if count == 1 else 200) as server:
        totals = forward_once(log, server, most_rows=3)
        assert totals["refused"] == 1
        assert not is_complete(log, server)
        kept = [json.loads(line) for line in (log.folder.parent / "position.refused.jsonl").read_text().splitlines()]
        bodies = [each.body for each in server.taken] + [each["body"].encode() for each in kept]
        assert told(bodies) == expected(entries(log.folder))


def test_a_stop_while_nobody_takes_anything_loses_nothing(log: WrittenLog) -> None:
    with RecordingServer(lambda count, _: 200 if count < 2 else 503) as server:
        with running(options(log, server.url, most_rows=3)) as forwarder:
            wait_until(lambda: forwarder.totals()["retried"], "it is being refused")
        server.answer = lambda count, _: 200
        forward_once(log, server)
        assert is_complete(log, server)


OLDER_COPY = "if this is an older copy of the log, a new --position file forwards all that it has"


@pytest.mark.parametrize(
    ("has_grown", "words"),
    [
        (False, r"was forwarded up to row \d+ of segment 2, but ends at row \d+ of segment 1: after a power cut"),
        (True, r"before row \d+ of segment 2, shard \d+ has other rows than were forwarded"),
    ],
)
def test_an_older_copy_of_the_log_is_an_error_not_a_hole(
    has_grown: bool, words: str, log: WrittenLog, tmp_path: Path
) -> None:
    """Also if it has grown beyond the position since it was put back."""
    log.close()
    copy = shutil.copytree(log.folder, tmp_path / "copy")
    with RecordingServer() as server:
        with WrittenLog(log.folder) as more:
            more.say(FakeAgent("pi-1", nonce=8, epoch=2), *workflow_of(3))
            forward_once(more, server)
        shutil.rmtree(log.folder)
        copy.rename(log.folder)
        if has_grown:
            with WrittenLog(log.folder) as other:
                other.say(FakeAgent("pi-1", nonce=9, epoch=2), *workflow_of(9, "evaluation"))
        before = len(server.received)
        with pytest.raises(ForwardingError, match=f"{words}.*{OLDER_COPY}"):
            forward_once(log, server)
        assert len(server.received) == before
        forward_once(log, server, position=tmp_path / "new")
        assert told(each.body for each in server.received[before:]) == expected(entries(log.folder))


def test_an_older_copy_with_a_shorter_segment_is_an_error_too(log: WrittenLog, tmp_path: Path) -> None:
    copy = shutil.copytree(log.folder, tmp_path / "copy")
    with RecordingServer() as server:
        log.say(PI, *workflow_of(1))
        forward_once(log, server)
        log.close()
        shutil.rmtree(log.folder)
        copy.rename(log.folder)
        with WrittenLog(log.folder) as other:
            other.say(FakeAgent("pi-1", nonce=9, epoch=2), *workflow_of(1))
        with pytest.raises(ForwardingError, match=f"ends at row .*{OLDER_COPY}"):
            forward_once(log, server)


def test_only_what_one_agent_said(log: WrittenLog) -> None:
    with RecordingServer() as server:
        forward_once(log, server, agent="pump-7")
        assert told(each.body for each in server.taken) == expected(entries(log.folder, agent="pump-7"))


def test_dfanalyzer_hears_of_each_task_in_order(log: WrittenLog) -> None:
    with RecordingServer() as server:
        totals = forward_once(log, server, "dfanalyzer", most_rows=2)
        assert {each.path for each in server.received} == {"/pde/dataflow/json", "/pde/task/json"}
        tasks = [each.json for each in server.received if each.path == "/pde/task/json"]
        numbers = list(dict.fromkeys(each["id"] for each in tasks))
        assert [(each["id"], each["status"]) for each in tasks if "sets" in each] == [
            (number, status) for number in numbers for status in ("RUNNING", "FINISHED")
        ]
        assert len(numbers) == 6
    assert totals["skipped"] == len(tuples_of(PUMP, 6)) + 2, "tuples, the end of the workflow, an unknown dependency"


@pytest.mark.parametrize("stop_after", [1, 6, 13])
def test_dfanalyzer_hears_the_same_if_the_forwarder_is_stopped_on_the_way(log: WrittenLog, stop_after: int) -> None:
    def tasks(server: RecordingServer) -> list[bytes]:
        return list(dict.fromkeys(each.body for each in server.taken if each.path == "/pde/task/json"))

    with RecordingServer() as undisturbed, RecordingServer() as server:
        forward_once(log, undisturbed, "dfanalyzer", position=log.folder.parent / "other", most_rows=2)
        server.answer = lambda count, _: 200 if count < stop_after else 503
        with running(options(log, server.url, "dfanalyzer", most_rows=2)) as forwarder:
            wait_until(lambda: forwarder.totals()["retried"], "it is being refused")
        server.answer = lambda count, _: 200
        forward_once(log, server, "dfanalyzer", most_rows=3)
        assert tasks(server) == tasks(undisturbed)


class Names:
    """A user's own system: a line per captured event, and how many lines there were."""

    def __init__(self, url: str) -> None:
        self.count = 0
        self._url = url

    def requests(self, entries: Sequence[Entry]) -> list[Request]:
        events = [entry for entry in entries if isinstance(entry.record, Event)]
        self.count += len(events)
        lines = [f"{self.count} {entry.agent} {type(entry.record).__name__}" for entry in events]
        return [Request(f"{self._url}/lines", "\n".join(lines).encode(), "text/plain")] if lines else []

    def memory(self) -> int:
        return self.count

    def recall(self, memory: int) -> None:
        self.count = memory + 0


class Broken:
    def __init__(self, url: str) -> None:
        self.skipped = {"a": 1}

    def requests(self, entries: Sequence[Entry]) -> list[Request]:
        raise KeyError("no such thing")


def test_a_class_of_the_users_own_and_what_it_remembers(log: WrittenLog) -> None:
    with RecordingServer() as server:
        forward_once(log, server, f"{__name__}:Names")
        log.say(PI, *workflow_of(1)[:1])
        forward_once(log, server, f"{__name__}:Names")
        first, second = server.received
    assert (first.path, first.content_type) == ("/lines", "text/plain")
    assert first.body.decode().splitlines()[0] == "14 pi-1 WorkflowBegun"
    assert second.body == b"15 pi-1 WorkflowBegun"


def test_a_class_that_fails_loses_nothing(log: WrittenLog) -> None:
    with RecordingServer() as server:
        with pytest.raises(ForwardingError, match=r"Broken cannot translate .*KeyError: 'no such thing'"):
            forward_once(log, server, f"{__name__}:Broken")
        assert server.received == []
    assert not (log.folder.parent / "position").exists()


def test_a_memory_that_cannot_be_read_is_told(log: WrittenLog) -> None:
    with RecordingServer() as server:
        forward_once(log, server, "dfanalyzer")
        position = log.folder.parent / "position"
        content = json.loads(position.read_text()) | {"memory": {"tasks": 1}}
        del content["check"]  # as of an older version
        position.write_text(json.dumps(content))
        for _ in range(2):  # it is not left locked
            with pytest.raises(PositionUnusable, match="what dfanalyzer remembers"):
                Forwarder(options(log, server.url, "dfanalyzer"))


def test_one_forwarder_per_position(log: WrittenLog) -> None:
    with RecordingServer() as server, running(options(log, server.url)), pytest.raises(PositionInUse):
        Forwarder(options(log, server.url))


def test_counters_for_prometheus(log: WrittenLog) -> None:
    port = free_port()
    with (
        RecordingServer(lambda count, _: 400 if count == 1 else 200) as server,
        running(options(log, server.url, metrics=("127.0.0.1", port), most_rows=3)) as forwarder,
    ):
        wait_until(lambda: forwarder.totals()["records"] == 25, "everything is forwarded")
        found = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        with pytest.raises(ForwardingError, match=r"cannot serve metrics on 127\.0\.0\.1:\d+ \(--metrics\)"):
            forward_once(log, server, position=log.folder / "x", metrics=("127.0.0.1", port))
    assert "threadline_forwarder_records_total 25.0" in found
    assert "threadline_forwarder_refused_total 1.0" in found
    assert "threadline_forwarder_lag_seconds 0.0" in found
