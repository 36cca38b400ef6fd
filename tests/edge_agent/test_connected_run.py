"""An app in an agent: its plan, its main(agent) or both, from start to end. Nobody answers the agent here."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_agent import capture
from edge_agent.config import Settings
from edge_agent.connected_run import ConnectedRun
from edge_agent.spool import SpoolFull
from edge_agent.stream import Plan, StreamError
from edge_agent.transport import Client
from protocol.plan import PlanError
from protocol.records import Declared, Delivery
from tests.edge_agent.spooled import NOWHERE, batches, has_ended, spooled

Run = Callable[..., ConnectedRun]


class Parts:
    """An app without a file."""

    def __init__(self, build: Callable[[], Plan] | None, main: Callable[[Any], Any] | None) -> None:
        self.build, self.main, self.has_plan = build, main, build is not None


@pytest.fixture(autouse=True)
def no_long_goodbyes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """There is nobody to say it to. What was captured goes to no agent of this test afterwards."""
    close = Client.close
    monkeypatch.setattr(Client, "close", lambda client, timeout: close(client, timeout=0.0))
    yield
    capture.use(None)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Run]:
    made: list[ConnectedRun] = []

    def new(
        build: Callable[[], Plan] | None = None,
        main: Callable[[Any], Any] | None = None,
        provenance: str | None = None,
        **options: Any,
    ) -> ConnectedRun:
        settings = Settings(name="pump-7", gateway=NOWHERE, spool=str(tmp_path), fsync="never", **options)
        parts: Any = Parts(build, main)
        made.append(ConnectedRun(parts, settings, provenance))
        return made[-1]

    yield new
    for each in made:
        each.close(0.0)


def doubles(items: Any = ((1, 1), (2, 2))) -> Callable[[], Plan]:
    def build() -> Plan:
        plan = Plan("doubles")
        plan.source("numbers", lambda: iter(items)).map(lambda value: 2 * value).sink("doubles")
        return plan

    return build


def ignore(_: str) -> None:
    pass


def delivered(folder: Path) -> list[Any]:
    return [each.payload for each in spooled(folder, "pump-7") if isinstance(each, Delivery)]


def test_a_plan_runs_to_its_end(app: Run, tmp_path: Path) -> None:
    said: list[str] = []
    run = app(doubles())
    run.run(said.append)
    text = run.close(0.0)
    assert said == [f"agent pump-7 epoch 1, spool {tmp_path}, gateway {NOWHERE}"]
    count = len(batches(tmp_path))
    assert text.endswith(f" {count} not acknowledged yet: they stay in {tmp_path} for the next start")
    records = spooled(tmp_path, "pump-7")
    assert delivered(tmp_path) == [2, 4]
    assert isinstance(records[0], Declared) and has_ended(records)


def test_the_provenance_of_a_plan_can_be_chosen(app: Run, tmp_path: Path) -> None:
    run = app(doubles(), provenance="none")
    run.run(ignore)
    run.close(0.0)
    told = [each for each in spooled(tmp_path, "pump-7") if isinstance(each, Delivery)]
    assert [each.origins for each in told] == [(), ()]
    assert '"provenance":"none"' in spooled(tmp_path, "pump-7")[0].plan.replace(" ", "")


def test_main_captures_with_the_agent_it_is_given(app: Run, tmp_path: Path) -> None:
    given: list[Any] = []

    def main(agent: Any) -> None:
        given.append(agent)
        with capture.Workflow("w"), capture.Task("t"):
            pass

    run = app(main=main)
    run.run(ignore)
    run.close(0.0)
    assert given == [run.agent]
    records = spooled(tmp_path, "pump-7")
    assert [type(each).__name__ for each in records if hasattr(each, "number")] == [
        "WorkflowBegun",
        "TaskBegun",
        "TaskEnded",
        "WorkflowEnded",
    ]
    assert has_ended(records)


def test_main_and_plan_run_side_by_side(app: Run, tmp_path: Path) -> None:
    said = threading.Event()

    def items() -> Iterator[tuple[int, int]]:
        yield 1, 1
        assert said.wait(10)
        yield 2, 2

    def main(agent: Any) -> None:
        said.set()

    run = app(doubles(items()), main)
    run.run(ignore)
    run.close(0.0)
    assert delivered(tmp_path) == [2, 4]


def test_errors_of_main_are_raised_and_the_plan_is_stopped(app: Run, tmp_path: Path) -> None:
    def main(agent: Any) -> None:
        raise ZeroDivisionError("oh")

    run = app(doubles((n, n) for n in range(10**9)), main)
    with pytest.raises(ZeroDivisionError, match="oh"):
        run.run(ignore)
    began = time.monotonic()
    run.close(0.0)
    assert time.monotonic() - began < 5
    assert has_ended(spooled(tmp_path, "pump-7"))


def test_errors_of_the_plan_are_raised_when_main_has_ended(
    app: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failed = threading.Event()

    def items() -> Iterator[Any]:
        yield 1, 1
        failed.set()
        yield "no tuple"

    ended: list[str] = []

    def main(agent: Any) -> None:
        assert failed.wait(10)
        ended.append("main")

    run = app(doubles(items()), main)
    with pytest.raises(StreamError, match="no tuple"):
        run.run(ignore)
    assert ended == ["main"]
    assert "the plan has ended" in caplog.text
    run.close(0.0)
    assert delivered(tmp_path) == [2]


def test_a_source_that_cannot_be_opened_is_the_plans_error(app: Run, tmp_path: Path) -> None:
    def build() -> Plan:
        plan = Plan("p")
        plan.source("s").sink("out")
        return plan

    run = app(build)
    with pytest.raises(PlanError, match="has no items"):
        run.run(ignore)
    run.close(0.0)
    assert has_ended(spooled(tmp_path, "pump-7"))


def test_close_does_not_wait_for_a_source_that_never_says_anything_and_nothing_follows_the_end(
    app: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_agent.connected_run._STOP_S", 0.2)
    waiting, go_on = threading.Event(), threading.Event()

    def items() -> Iterator[tuple[int, int]]:
        yield 1, 1
        waiting.set()
        go_on.wait(10)
        yield 2, 2

    run = app(doubles(items()))
    running = threading.Thread(target=run.run, args=(ignore,), daemon=True)
    running.start()
    assert waiting.wait(10)
    run.close(0.0)
    go_on.set()
    running.join(10)
    records = spooled(tmp_path, "pump-7")
    assert has_ended(records)
    assert delivered(tmp_path) == [2]


def test_close_lets_go_of_a_plan_that_waits_for_room(app: Run, tmp_path: Path) -> None:
    noise = ((n, bytes([n % 251]) * 997) for n in range(10**9))

    def build() -> Plan:
        plan = Plan("noise")
        plan.source("source", noise).map(lambda value: value + b"!").sink("noise")
        return plan

    run = app(build, when_full="block", spool_bytes=64 << 10, memory_bytes=64 << 10, batch_bytes=64)
    running = threading.Thread(target=run.run, args=(ignore,), daemon=True)
    running.start()
    give_up = time.monotonic() + 10
    while not run.agent.status()["trouble"]:
        assert time.monotonic() < give_up, "the spool should be full"
        time.sleep(0.02)
    began = time.monotonic()
    text = run.close(0.0)
    running.join(10)
    assert not running.is_alive()
    assert time.monotonic() - began < 6
    lost = re.search(r" \d+ records dropped, (\d+) records could not be written: they are lost; \d+ not ack", text)
    assert lost is not None and int(lost[1]) > 0 and run.has_lost
    assert not has_ended(spooled(tmp_path, "pump-7")), "not all of it is on disk"


def test_tuples_for_other_agents_that_have_no_room_are_said_to_be_lost(app: Run) -> None:
    def build() -> Plan:
        plan = Plan("noise")
        plan.source("source", [(n, os.urandom(1_000)) for n in range(5)]).send("noise", to=["lab"])
        return plan

    run = app(build, when_full="block", spool_bytes=64 << 10)
    assert run.agent.exchange is not None
    (send,) = run.agent.exchange._sends.values()
    with pytest.raises(SpoolFull):
        while True:
            send.spool.append(os.urandom(500))
    run.run(ignore)
    text = run.close(0.0)
    assert "the last tuples for other agents could not be written: they are lost" in text
    assert run.has_lost


def test_a_run_that_has_written_everything_has_lost_nothing(app: Run) -> None:
    run = app(doubles())
    run.run(ignore)
    assert "lost" not in run.close(0.0)
    assert not run.has_lost
