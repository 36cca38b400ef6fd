"""`threadline tail`: every event once and in order, whatever happens to the API meanwhile."""

from __future__ import annotations

import json
import subprocess
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from collector.store import StoreWriter, open_store
from tests.support.waiting import wait_until
from tests.threadline.commands.served import Api, batches, pipes


def events(api: Api, *options: str) -> list[dict[str, Any]]:
    result = api.run("tail", *options, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def places(store: Path) -> list[str]:
    """The ids of all events that the store has."""
    with closing(open_store(f"sqlite:///{store}").reader()) as reader:
        found = [each.cursor for each in reader.changes(reader.feed_start(), 1_000_000)]
        return [f"{each.row}-{each.items}-{reader.identity}" for each in found]


def test_it_begins_where_it_is_asked_to_and_stops_after_so_many(api: Api) -> None:
    first = events(api, "--since", "start", "--count", "20")
    assert len(first) == 20 and len({each["id"] for each in first}) == 20
    assert events(api, "--since", first[9]["id"], "--count", "10") == first[10:]


def test_a_line_says_what_was_added(api: Api) -> None:
    lines = api.run("tail", "--since", "start", "--count", "500").stdout.splitlines()
    assert lines[0].split() == ["1000", "ms", "sink", "center/alerts@1:0", "at", "1000", "ms"]
    [edge, *_] = [line for line in lines if " edge " in line]
    assert edge.split()[3:] == ["car/readings@1:0", "->", "center/alerts@1:0"]
    [label, *_] = [line for line in lines if " sink-label " in line]
    assert label.split()[-1] == "complete"


@pytest.mark.parametrize(
    ("options", "is_meant"),
    [
        (["--kind", "sink-label", "--kind", "source-label"], lambda each: each["kind"].endswith("-label")),
        (["--agent", "hub"], lambda each: any(str(name).startswith("hub/") for name in each["data"].values())),
        (
            ["--stream", "center/alerts", "--kind", "sink"],
            lambda each: each["kind"] == "sink" and each["data"]["id"].startswith("center/alerts@"),
        ),
    ],
)
def test_filters_leave_those_that_are_meant(api: Api, options: list[str], is_meant: Any) -> None:
    meant = [each for each in events(api, "--since", "start", "--count", "500") if is_meant(each)][:5]
    assert len(meant) == 5
    assert events(api, "--since", "start", "--count", "5", *options) == meant


def test_every_event_comes_once_though_the_api_is_killed_and_comes_back(tmp_path: Path) -> None:
    store = tmp_path / "graph.db"
    seen: list[str] = []
    told: list[str] = []
    made = iter(list(batches()))
    with StoreWriter(store) as writer, Api(tmp_path, store) as api:
        writer.write(next(made))
        with api.started(
            "tail", "--since", "start", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            out, err = pipes(process)
            readers = [
                threading.Thread(target=lambda: seen.extend(json.loads(line)["id"] for line in out)),
                threading.Thread(target=lambda: told.extend(err)),
            ]
            for reader in readers:
                reader.start()
            wait_until(lambda: seen == places(store), "the first events", 20)
            for _ in range(2):
                writer.write(next(made))
                api.kill()
                writer.write(next(made))
                wait_until(lambda: len(told) % 2, "that the connection is lost", 20)
                api.start()
                writer.write(next(made))
                wait_until(lambda: seen == places(store), "all events, each once", 20)
            for batch in made:
                writer.write(batch)
            wait_until(lambda: seen == places(store), "all events, each once", 20)
            process.terminate()
            for reader in readers:
                reader.join(20)
    assert seen == places(store) and len(seen) == len(set(seen)) > 500
    assert [("is lost" in line, "is back" in line) for line in told] == [(True, False), (False, True)] * 2
    assert all(line.startswith("threadline: the connection") for line in told)


def test_an_api_that_is_stopped_is_waited_for(tmp_path: Path) -> None:
    store = tmp_path / "graph.db"
    made = batches()
    with StoreWriter(store) as writer, Api(tmp_path, store) as api:
        writer.write(next(made))
        with api.started(
            *("tail", "--since", "start", "--stream", "center/alerts", "--kind", "sink", "--count", "2"),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            out, err = pipes(process)
            assert "center/alerts@1:0" in out.readline()
            api.stop()
            assert "is lost" in err.readline()
            api.start()
            assert "is back" in err.readline()
            writer.write(next(made))
            assert "center/alerts@1:1" in out.readline()
            assert process.wait(20) == 0
