"""Questions about captured runs, as people ask them: which run was best, what did it use, where did this come from."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.events import UNKNOWN, Dependency, Event
from tests.collector.agents import FakeAgent
from tests.collector.api.served import Json, Served
from tests.collector.forwarding.captured import row_of
from tests.collector.store.captures import begun, data, ended, workflow_begun, workflow_ended
from tests.collector.store.graphs import graph_batch
from tests.collector.store.rows import record_row, register_row

PI = FakeAgent("pi-1", nonce=2**64 - 1, epoch=1)
LAPTOP = FakeAgent("laptop", nonce=3, epoch=4)
NEW = FakeAgent("pi-9", nonce=0xAB, epoch=0)
LOSSES: dict[tuple[float, int], list[Any]] = {
    (0.1, 16): [0.9, 0.5, 0.4],
    (0.2, 16): [0.8, "nan", 0.3],
    (0.2, 32): [0.7, 0.6],
}
"""By hyperparameters: the loss after each epoch."""


def training(key: int, rate: float, batch: int, losses: list[Any]) -> list[Event]:
    """A run: each epoch goes on with the model of the one before, and the last one is checked."""
    told: list[Event] = [workflow_begun(key, "training", 1_000 * key, {"model": "m", "rate": rate})]
    name = f"{rate}-{batch}"
    for epoch, loss in enumerate(losses):
        task, ts = 10 * key + epoch, 1_000 * key + 100 * epoch
        used = data(f"{name}-{epoch - 1}", {"rate": rate, "batch": batch}, workflow="training")
        after = [Dependency(f"epoch-{epoch - 1}", task - 1)] if epoch else [Dependency("setup", UNKNOWN)]
        told.append(begun(task, f"epoch-{epoch}", used, workflow=key, ts=ts, after=after))
        made = data(f"{name}-{epoch}", {"epoch": epoch, "loss": loss}, f"{name}-{epoch - 1}", workflow="training")
        told.append(ended(task, made, ts=ts + 10 * (epoch + 1)))
    return [*told, workflow_ended(key, 1_000 * key + 900)]


@pytest.fixture(scope="module")
def runs(served: Served) -> Served:
    """Three runs of a training on pi-1; a laptop that has failed, and is at it again; one of which nobody has said by
    which number its start is known."""
    of_pi: list[Event] = []
    for key, ((rate, batch), losses) in enumerate(LOSSES.items(), 1):
        of_pi += training(key, rate, batch, losses)
    of_laptop: list[Event] = [
        workflow_begun(0, "training", 9_000, {"model": "n"}),
        begun(1, "epoch-0", data("0.1-16-2", workflow="training"), ts=9_000, transformation="check"),
        ended(1, ts=9_500, error="no such file"),
        workflow_ended(0, 9_600, "no such file"),
        workflow_begun(2, "a/b c", 9_700),
        begun(3, "epoch-0", workflow=2, ts=9_700, transformation="check"),
        ended(9, data("out", {"loss": 0}, workflow="training"), ts=5),
    ]
    of_new: list[Event] = [begun(1, "t", data("d/1", workflow="a/b"), ts=5)]
    rows = [
        register_row(1, "x", of=PI, stream_of=PI),
        register_row(2, "x", of=LAPTOP, stream_of=LAPTOP),
        record_row(*map(row_of, of_pi), seq=1, of=PI),
        record_row(*map(row_of, of_laptop), seq=1, of=LAPTOP),
        record_row(*map(row_of, of_new), seq=1, of=NEW),
    ]
    with served.new_store() as writer:
        writer.write(graph_batch("q", 0, rows=rows))
    return served


def every(served: Served, path: str, **asked: Any) -> list[Json]:
    found: list[Json] = served.every(path, "items", **asked)
    assert found == served.every(path, "items", limit=1, **asked), "by pages it is the same"
    return found


def test_elapsed_time_and_loss_of_the_latest_epoch_of_each_combination_of_hyperparameters(runs: Served) -> None:
    found = every(
        runs,
        "/v1/tasks",
        transformation="train",
        group_by="used.rate,used.batch",
        latest="generated.epoch",
        select="elapsed_ms,generated.loss",
    )
    assert [each["values"] for each in found] == [
        {"used.rate": 0.1, "used.batch": 16, "elapsed_ms": 30, "generated.loss": 0.4},
        {"used.rate": 0.2, "used.batch": 16, "elapsed_ms": 30, "generated.loss": 0.3},
        {"used.rate": 0.2, "used.batch": 32, "elapsed_ms": 20, "generated.loss": 0.6},
    ]


def test_the_hyperparameters_of_the_three_least_losses(runs: Served) -> None:
    found = runs.get("/v1/tasks", order_by="generated.loss", limit=3, select="used.rate,used.batch", agent="pi-1")
    assert [each["values"] for each in found["items"]] == [
        {"used.rate": 0.2, "used.batch": 16},
        {"used.rate": 0.1, "used.batch": 16},
        {"used.rate": 0.1, "used.batch": 16},
    ]
    assert found["next"] is not None


def test_the_best_of_each_group(runs: Served) -> None:
    asked = {"group_by": "workflow_name,agent", "least": "generated.loss", "where": "generated.loss>0"}
    (best,) = every(runs, "/v1/tasks", **asked)
    assert best["values"] == {"workflow_name": "training", "agent": "pi-1"}
    assert best["id"] == "task:pi-1@1:22"


def test_tasks_that_are_asked_for(runs: Served) -> None:
    def ids(**asked: Any) -> list[str]:
        return [each["id"] for each in every(runs, "/v1/tasks", **asked)]

    of_pi = [f"task:pi-1@1:{key}" for key in (10, 11, 12, 20, 21, 22, 30, 31)]
    assert ids(agent="pi-1") == of_pi
    assert ids(workflow="workflow:pi-1@1:3") == of_pi[6:]
    assert ids(workflow_name="training", transformation="check") == ["task:laptop@4:1"]
    assert ids(name="epoch-2") == [of_pi[2], of_pi[5]]
    assert ids(status_="failed") == ["task:laptop@4:1"]
    assert ids(status_="running") == ["task:laptop@4:3", "task:pi-9@~ab:1"]
    assert ids(epoch=4) == ["task:laptop@4:1", "task:laptop@4:3", "task:laptop@4:9"]
    assert ids(from_=3_000, to=3_100) == of_pi[6:]
    assert ids(where="error~file") == ["task:laptop@4:1"]
    assert ids(where=["used.rate=0.2", "generated.loss<0.65"]) == [of_pi[5], of_pi[7]]
    assert ids(where='generated.loss="nan"') == [of_pi[4]]
    assert ids(where="workflow.model=n") == ["task:laptop@4:1"]
    assert ids(order_by="-begun_ms", agent="laptop") == ["task:laptop@4:3", "task:laptop@4:1", "task:laptop@4:9"]


def test_a_task_of_which_only_the_end_is_known(runs: Served) -> None:
    assert runs.get("/v1/vertices/task:laptop@4:9") == {
        "id": "task:laptop@4:9",
        "kind": "task",
        "agent": "laptop",
        "epoch": 4,
        "name": None,
        "transformation": None,
        "workflow": None,
        "workflow_name": None,
        "begun_ms": None,
        "ended_ms": 5,
        "elapsed_ms": None,
        "status": "finished",
        "error": None,
    }


def test_data_as_tasks_had_it(runs: Served) -> None:
    found = every(runs, "/v1/data", task="task:pi-1@1:11")
    assert [(each["role"], each["id"], each["derivations"]) for each in found] == [
        ("used", "data:pi-1@1:training/0.1-16-0", []),
        ("generated", "data:pi-1@1:training/0.1-16-1", ["0.1-16-0"]),
    ]
    assert found[1]["attributes"] == {"epoch": 1, "loss": 0.5}
    assert (found[1]["task"], found[1]["task_name"], found[1]["ended_ms"]) == ("task:pi-1@1:11", "epoch-1", 1_120)
    used = every(runs, "/v1/data", name="0.1-16-2")
    assert [(each["agent"], each["role"], each["id"]) for each in used] == [
        ("pi-1", "generated", "data:pi-1@1:training/0.1-16-2"),
        ("laptop", "used", "data:pi-1@1:training/0.1-16-2"),
    ]
    best = runs.get("/v1/data", role="generated", order_by="loss", where="loss>0", select="loss", limit=1)["items"]
    assert [each["values"] for each in best] == [{"loss": 0.3}]
    assert every(runs, "/v1/data", workflow="workflow:pi-1@1:3", role="used", where="batch=16") == []


def test_runs_of_workflows(runs: Served) -> None:
    assert [each["id"] for each in every(runs, "/v1/workflows", name="training")] == [
        *("workflow:pi-1@1:1", "workflow:pi-1@1:2", "workflow:pi-1@1:3"),
        "workflow:laptop@4:0",
    ]
    (failed,) = every(runs, "/v1/workflows", status_="failed", select="model")
    assert (failed["error"], failed["elapsed_ms"], failed["values"]) == ("no such file", 600, {"model": "n"})
    assert failed["attributes"] == {"model": "n"}
    latest = every(runs, "/v1/workflows", group_by="name", latest="begun_ms")
    assert sorted(each["id"] for each in latest) == ["workflow:laptop@4:0", "workflow:laptop@4:2"]
    assert runs.get("/v1/vertices/workflow:laptop@4:0") | {"values": {"model": "n"}} == failed


def test_runs_side_by_side(runs: Served) -> None:
    found = runs.get("/v1/workflows/compare", run=["workflow:pi-1@1:1", "workflow:pi-1@1:3", "workflow:pi-1@1:1"])
    one, three = found["runs"]
    assert [each["workflow"]["id"] for each in (one, three)] == ["workflow:pi-1@1:1", "workflow:pi-1@1:3"]
    (train,) = one["transformations"]
    assert (train["name"], train["finished"], train["total_ms"], train["mean_ms"]) == ("train", 3, 60, 20.0)
    losses = next(each for each in train["measures"] if each["path"] == "loss")
    assert losses == {"path": "loss", "values": 3, "last": 0.4, "least": 0.4, "greatest": 0.9}
    differing = {(each["of"], each["path"]): [one["value"] for one in each["values"]] for each in found["differing"]}
    assert differing == {("workflow", "rate"): [0.1, 0.2], ("used", "rate"): [0.1, 0.2], ("used", "batch"): [16, 32]}
    assert [(each["of"], each["path"]) for each in found["same"]] == [("workflow", "model")]
    assert found["truncated"] is False
    every_run = runs.get("/v1/workflows/compare", run="training")["runs"]
    assert [each["workflow"]["id"] for each in every_run] == [
        "workflow:laptop@4:0",
        *(f"workflow:pi-1@1:{key}" for key in (3, 2, 1)),
    ]


def test_where_data_came_from_over_two_programs(runs: Served) -> None:
    found = runs.get("/v1/vertices/task:laptop@4:1/backward", payload=True)
    ids = [each["id"] for each in found["vertices"]]
    assert ids[0] == "task:laptop@4:1"
    assert set(ids[1:]) == {
        *(f"data:pi-1@1:training/0.1-16-{epoch}" for epoch in (0, 1, 2)),
        "data:training/0.1-16--1",
        *(f"task:pi-1@1:{key}" for key in (10, 11, 12)),
    }
    relations = {(each["origin"], each["derived"], each["relation"]) for each in found["edges"]}
    assert ("data:pi-1@1:training/0.1-16-2", "task:laptop@4:1", "used") in relations
    assert ("task:pi-1@1:12", "data:pi-1@1:training/0.1-16-2", "wasGeneratedBy") in relations
    assert ("data:pi-1@1:training/0.1-16-1", "data:pi-1@1:training/0.1-16-2", "wasDerivedFrom") in relations
    assert ("task:pi-1@1:11", "task:pi-1@1:12", "wasInformedBy") in relations
    of_data = {each["id"]: each for each in found["vertices"] if each["kind"] == "data"}
    assert of_data["data:pi-1@1:training/0.1-16-2"]["attributes"] == {"epoch": 2, "loss": 0.4}
    assert of_data["data:training/0.1-16--1"]["agent"] is None, "nobody has generated it"
    onward = runs.get("/v1/vertices/data:training/0.1-16--1/forward")
    assert {each["id"] for each in onward["vertices"]} == set(ids)


def test_what_is_around_a_task_step_by_step(runs: Served) -> None:
    found = runs.get("/v1/vertices/task:pi-1@1:11/lineage", levels=1, direction="both")
    assert found["levels"] == {
        "task:pi-1@1:11": 0,
        "data:pi-1@1:training/0.1-16-0": 1,
        "task:pi-1@1:10": 1,
        "data:pi-1@1:training/0.1-16-1": 1,
        "task:pi-1@1:12": 1,
    }
    first = runs.get("/v1/vertices/task:pi-1@1:10/lineage")
    assert first["unresolved"] == ["setup"], "a dependency of which nothing is known"


def test_ways_from_data_to_data(runs: Served) -> None:
    begin, end = "data:training/0.1-16--1", "data:pi-1@1:training/0.1-16-0"
    found = runs.get("/v1/paths", from_=begin, to=end)
    assert sorted(found["paths"], key=len) == [[begin, end], [begin, "task:pi-1@1:10", end]]
    found = runs.get("/v1/paths", from_=begin, to="~laptop/check", via="pi-1/train")
    assert found["paths"] and {path[-1] for path in found["paths"]} == {"task:laptop@4:1"}


def test_names_that_hold_slashes(runs: Served) -> None:
    (found,) = every(runs, "/v1/data", name="d/1")
    assert found["id"] == "data:a%2Fb/d%2F1"
    assert runs.get("/v1/workflows", name="a/b c")["items"][0]["id"] == "workflow:laptop@4:2"
    assert every(runs, "/v1/tasks", agent="pi-9")[0]["id"] == "task:pi-9@~ab:1"
    assert runs.get("/v1/vertices/task:pi-9@~ab:1")["epoch"] is None


@pytest.mark.parametrize("name", ["backward", "forward", "lineage"])
def test_data_that_is_called_like_a_question(other: Served, name: str) -> None:
    with other.new_store() as writer:
        events: list[Event] = [begun(1, "t", data(name, {"x": 1}), ts=5), ended(1, data("out", None, name), ts=6)]
        rows = [register_row(1, "x", of=PI, stream_of=PI), record_row(*map(row_of, events), seq=1, of=PI)]
        writer.write(graph_batch("q", 0, rows=rows))
    id = f"data:w/{name}"
    found = other.get(f"/v1/vertices/{id}")
    assert (found["id"], found["attributes"]) == (id, {"x": 1})
    assert {each["id"] for each in other.get(f"/v1/vertices/{id}/forward")["vertices"]} == {
        *(id, "task:pi-1@1:1", "data:pi-1@1:w/out")
    }
    assert other.get(f"/v1/vertices/{id}/backward")["edges"] == []
    assert other.get(f"/v1/vertices/{id}/lineage")["levels"] == {id: 0}
