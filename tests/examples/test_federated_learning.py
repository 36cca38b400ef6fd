"""Federated learning, captured through the whole chain: the paper's two questions as docs/federated.md asks them, and
where a model came from. What must come out follows from what the program itself says that it has learnt."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from collector.log import LogReader
from collector.store import open_store
from edge_agent.agent import Agent
from edge_agent.config import load_settings
from examples.federated_learning import DEVICES as PLACES
from examples.federated_learning import SERVER, Combination, Plan, Result, Score, _captured, _print_table
from tests.support.pipeline import Pipeline
from tests.system.delivery.site import Cloud
from threadline.lab import ApiService, find_mosquitto

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "examples" / "federated_learning.py"
PAGE = (ROOT / "docs" / "federated.md").read_text()
GUIDE = (ROOT / "docs" / "api.md").read_text()
DEVICES = [f"device-{number}" for number in range(1, 5)]
ROUNDS, LOCAL_EPOCHS = 3, 2
EPOCHS = ROUNDS * LOCAL_EPOCHS

Learnt = dict[str, Any]
"""What the program prints as JSON."""


def program(*options: str, **environment: str) -> subprocess.Popen[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("THREADLINE_")}
    sizes = ("--rounds", str(ROUNDS), "--epochs", str(LOCAL_EPOCHS))
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *sizes, *options],
        env=inherited | environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def output(run: subprocess.Popen[str]) -> tuple[str, str]:
    printed, told = run.communicate(timeout=60)
    assert run.returncode == 0, told
    return printed, told


def results_of(learnt: Learnt, model: str) -> list[dict[str, Any]]:
    return [each for each in learnt["results"] if each["model"] == model]


@contextmanager
def served(cloud: Cloud, folder: Path) -> Iterator[str]:
    """The API over what is in the log; its address."""
    reader, store = LogReader(cloud.log_folder), f"sqlite:///{folder / 'graph.db'}"
    rows = {shard: list(reader.rows(shard, reader.start(shard), reader.end(shard))) for shard in reader.shards()}
    with open_store(store).writer() as writer:
        writer.write(Pipeline().run(rows))
    with ApiService(folder, cloud.mosquitto, store) as api:
        yield api.url


def get(url: str) -> Any:
    answer = httpx.get(url, timeout=20)
    assert answer.status_code == 200, answer.text
    return answer.json()


# As the page asks


def by_curl(api: str, text: str) -> Any:
    """What the page's request gives, here and about this run."""
    (url,) = shlex.split(text)[1:]
    assert url.startswith("http://127.0.0.1:8080/v1/")
    return get(url.replace("http://127.0.0.1:8080", api))


def by_command(api: str, text: str) -> Any:
    """What the page's command gives."""
    name, *arguments = shlex.split(text)
    assert name == "threadline"
    done = subprocess.run(
        [sys.executable, "-m", "threadline", *arguments, "--json"],
        env=os.environ | {"THREADLINE_API": api}, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def lines(beginning: str) -> list[str]:
    return re.findall(rf"^{re.escape(beginning)}.*$", PAGE, re.MULTILINE)


def check_latest_epochs(answer: Any, learnt: Learnt, model: str) -> None:
    """Elapsed time and loss of the last epoch, of each combination on each device."""
    told = {
        (each["rate"], each["batch"], epoch["device"]): epoch
        for each in results_of(learnt, model)
        for epoch in each["epochs"]
        if epoch["epoch"] == EPOCHS
    }
    assert len(told) == 4 * len(DEVICES)
    found = {(row["values"]["used.rate"], row["values"]["used.batch"], row["agent"]): row for row in answer["items"]}
    assert len(answer["items"]) == len(found) and answer["next"] is None
    assert {key: row["values"]["generated.loss"] for key, row in found.items()} == {
        key: epoch["loss"] for key, epoch in told.items()
    }
    for key, row in found.items():  # the task is around what the program has timed
        assert row["begun_ms"] <= told[key]["begun_ms"] <= told[key]["ended_ms"] <= row["ended_ms"]
        assert row["values"]["elapsed_ms"] == row["ended_ms"] - row["begun_ms"]


def check_loss_over_all(answer: Any, learnt: Learnt, model: str) -> None:
    """Of each combination, the loss of the last epoch over the readings of all devices."""
    told = {}
    for each in results_of(learnt, model):
        losses = {epoch["device"]: epoch["loss"] for epoch in each["epochs"] if epoch["epoch"] == EPOCHS}
        total = sum(losses[name] * place.readings for name, place in PLACES.items())
        told[each["rate"], each["batch"]] = total / sum(place.readings for place in PLACES.values())
    rows = [row["values"] for row in answer["items"]]
    assert {(row["used.rate"], row["used.batch"]): row["generated.loss"] for row in rows} == pytest.approx(told)
    assert len(rows) == len(told) == 4


def check_best(answer: Any, learnt: Learnt, model: str) -> None:
    """The hyperparameters of the three best accuracies. Two that are as good as each other may be in any order."""
    told = {(each["rate"], each["batch"]): each["accuracy"] for each in results_of(learnt, model)}
    rows = [row["values"] for row in answer["items"]]
    found = {(row["used.rate"], row["used.batch"]): row["generated.accuracy"] for row in rows}
    assert [row["generated.accuracy"] for row in rows] == sorted(told.values(), reverse=True)[:3]
    assert len(found) == 3 and found.items() <= told.items()


def check_backward(graph: Any, learnt: Learnt, result: dict[str, Any]) -> None:
    """A model comes from every epoch of its combination on all devices, from their readings, and from no others."""
    tasks = Counter((each["transformation"], each["agent"]) for each in graph["vertices"] if each["kind"] == "task")
    assert tasks == {
        **{("train", device): EPOCHS for device in DEVICES},
        ("aggregate", "fl-server"): ROUNDS,
        ("initialise", "fl-server"): 1,
    }
    data = {(each["agent"], each["name"]) for each in graph["vertices"] if each["kind"] == "data"}
    name = f"{learnt['run']}-{result['model']}-{result['rate']}-{result['batch']}"
    assert data == {
        *((None, f"{learnt['run']}-{device}-readings") for device in DEVICES),
        *(("fl-server", f"{name}-round-{number}") for number in range(ROUNDS + 1)),
        *(
            (device, f"{name}-round-{number}-{device}-epoch-{epoch}")
            for device in DEVICES
            for number in range(1, ROUNDS + 1)
            for epoch in range(1, LOCAL_EPOCHS + 1)
        ),
        (None, name),
    }
    assert graph["next"] is None and not graph["truncated"]


def check_the_guide_of_the_api(api: str, learnt: Learnt) -> None:
    """What it asks of this example has an answer."""
    asked = re.findall(r"^curl .*'http://127\.0\.0\.1:8080(/[^']+)'$", GUIDE, re.MULTILINE)
    asked = [path for path in asked if re.search("federated-learning|fl-server|device-", path)]
    assert len(asked) == 5
    for path in asked:
        found = get(api + path.replace("run-3f9c51", learnt["run"]))
        assert found.get("items") or found.get("edges") or found.get("runs"), path


@pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed (Debian: apt install mosquitto)")
def test_both_questions_are_one_line_each_and_a_model_is_traced_back_to_all_devices(tmp_path: Path) -> None:
    requests, commands = lines("curl"), lines("threadline tasks")
    assert len(requests) == 4 and len(commands) == 2
    latest, best, backward, forward = requests
    with Cloud(tmp_path) as cloud:
        spool = str(tmp_path / "spools")
        run = program("--json", THREADLINE_GATEWAY=cloud.gateway_url, THREADLINE_SPOOL=spool)
        printed, told = output(run)
        learnt = json.loads(printed)
        assert told == (
            f"Captured as {learnt['run']} of the workflow federated-learning, for the gateway {cloud.gateway_url}.\n"
        )
        with served(cloud, tmp_path) as api:
            for model in ("quadratic", "linear"):
                check_latest_epochs(by_curl(api, latest.replace("quadratic", model)), learnt, model)
                check_best(by_curl(api, best.replace("quadratic", model)), learnt, model)
            over_all = latest.replace("=train&", "=aggregate&").replace(",agent", "")
            check_loss_over_all(by_curl(api, over_all), learnt, "quadratic")

            (result,) = (each for each in results_of(learnt, "quadratic") if (each["rate"], each["batch"]) == (0.3, 10))
            here = ("run-3f9c51", learnt["run"]), ("round-5", f"round-{ROUNDS}")
            for old, new in here:
                backward, forward = backward.replace(old, new), forward.replace(old, new)
            assert result["global_model"] in backward
            check_backward(by_curl(api, backward), learnt, result)
            touched = {each.get("name") for each in by_curl(api, forward)["vertices"]}
            assert touched >= {each["global_model"] for each in learnt["results"]}
            workflows = get(f"{api}/v1/workflows?name=federated-learning&where=run={learnt['run']}")["items"]
            assert {(each["agent"], each["status"]) for each in workflows} == {
                (agent, "finished") for agent in (*DEVICES, "fl-server")
            }

            check_the_guide_of_the_api(api, learnt)
            check_latest_epochs(by_command(api, commands[0]), learnt, "quadratic")
            check_best(by_command(api, commands[1]), learnt, "quadratic")


def test_it_learns_and_it_learns_the_same_each_time_also_if_nothing_is_captured() -> None:
    runs = program("--json"), program()
    (printed, told), (table, told_again) = map(output, runs)
    assert told == told_again == "Nothing is captured: give --gateway HOST:PORT, or set THREADLINE_GATEWAY.\n"
    learnt = json.loads(printed)
    assert len(learnt["results"]) == 8
    for each in learnt["results"]:
        assert [(epoch["epoch"], epoch["device"]) for epoch in each["epochs"]] == [
            (epoch, device) for epoch in range(1, EPOCHS + 1) for device in DEVICES
        ]
        first, last = each["epochs"][: len(DEVICES)], each["epochs"][-len(DEVICES) :]
        assert sum(epoch["loss"] for epoch in last) < sum(epoch["loss"] for epoch in first)
        assert each["accuracy"] > (0.85 if each["model"] == "quadratic" else 0.75)
    rows = [line.split() for line in table.splitlines()[2:]]
    assert rows == [
        [
            *(each["model"], str(each["rate"]), str(each["batch"])),
            *(f"{epoch['loss']:.3f}" for epoch in each["epochs"][-len(DEVICES) :]),
            f"{each['accuracy']:.4f}",
        ]
        for each in learnt["results"]
    ]


def plan(folder: Path, rounds: int = 1) -> Plan:
    return Plan("run-1", 1, rounds, 2, gateway="127.0.0.1:9", spool=str(folder))


def test_what_the_gateway_has_not_taken_is_told_with_the_way_to_send_it(tmp_path: Path) -> None:
    for name in (*PLACES, SERVER):
        settings = load_settings(name=name, gateway="127.0.0.1:9", spool=str(tmp_path / name), environment={})
        agent = Agent(settings).start()
        assert agent.close(0.0)
    first, *commands = _captured(plan(tmp_path)).splitlines()
    assert first.startswith("Captured as run-1 ") and "has not taken all of it: the rest waits on disk" in first
    assert commands == [
        f"    threadline-agent send --spool {tmp_path / name} --gateway 127.0.0.1:9" for name in (*PLACES, SERVER)
    ]


def test_one_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rounds, words in ((1, "1 round of 2 epochs on 4 devices"), (2, "2 rounds of 2 epochs on 4 devices")):
        _print_table(plan(tmp_path, rounds), iter([]))
        assert capsys.readouterr().out.startswith(words)


def test_it_learns_on_though_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    results = iter([Result(Combination("linear", 0.1, 10), "model", Score(0.1, 0.9), [])])
    with os.fdopen(writer, "w") as nobody:
        monkeypatch.setattr(sys, "stdout", nobody)
        _print_table(plan(tmp_path), results)
    assert list(results) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--gateway", "nowhere"], "gateway"), (["--rounds", "0"], "at least 1"), (["--epochs", "few"], "--epochs")],
)
def test_what_cannot_be_meant_is_told_at_once(options: list[str], words: str) -> None:
    run = program(*options)
    printed, told = run.communicate(timeout=30)
    assert run.returncode != 0 and printed == ""
    assert words in told and "Traceback" not in told
