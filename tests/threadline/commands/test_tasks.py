"""`threadline tasks`: the questions that people have about captured runs, a line each."""

from __future__ import annotations

import json

import pytest

from tests.threadline.commands.served import CLOCK, Api


def rows(api: Api, *options: str) -> list[list[str]]:
    result = api.run("tasks", "--all", *options)
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.stdout.splitlines()]


def test_elapsed_time_and_loss_of_the_latest_epoch_of_each_combination_of_hyperparameters(api: Api) -> None:
    line = (
        "--transformation train --group-by used.rate,used.batch --latest generated.epoch "
        "--select elapsed_ms,generated.loss"
    )
    head, *values = rows(api, *line.split())
    assert head == ["TASK", "used.rate", "used.batch", "elapsed_ms", "generated.loss"]
    assert [row[1:] for row in values] == [
        ["0.1", "16", "20", "0.05"],
        ["0.1", "32", "40", "0.05"],
        ["0.2", "16", "60", "0.1"],
    ]


def test_hyperparameters_of_the_three_best_accuracies(api: Api) -> None:
    line = (
        "--transformation train --order-by=-generated.accuracy --limit 3 "
        "--select used.rate,used.batch,generated.accuracy"
    )
    result = api.run("tasks", *line.split())
    head, *values = [line.split() for line in result.stdout.splitlines()]
    assert head == ["TASK", "used.rate", "used.batch", "generated.accuracy"]
    assert [row[1:] for row in values] == [["0.2", "16", "0.6"], ["0.2", "16", "0.5"], ["0.1", "32", "0.4"]]


def test_a_task_is_shown_with_what_is_known_of_it(api: Api) -> None:
    head, task = api.run("tasks", "--name", "epoch-2").stdout.splitlines()
    assert head.split() == ["TASK", "NAME", "TRANSFORMATION", "WORKFLOW", "STATUS", "BEGUN", "ELAPSED", "ERROR"]
    begun = CLOCK.replace(":00.", ":02.")
    assert task.split() == ["task:pi-1@1:2", "epoch-2", "train", "training", "finished", begun, "20", "ms"]
    [_, failed] = api.run("tasks", "--status", "failed").stdout.splitlines()
    assert failed.split()[-2:] == ["ms", "[bold]it\\nbroke"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--workflow", "workflow:pi-1@1:0", "--transformation", "test"], ["test"]),
        (["--workflow-name", "training", "--status", "failed"], ["test"]),
        (["--where", "used.rate=0.2", "--where", "generated.epoch=2"], ["epoch-6"]),
        (["--from", "2026-11-17T07:20:05Z"], ["epoch-5", "epoch-6"]),
        (["--from", "50", "--to", "52"], ["step-51", "step-52"]),
        (["--agent", "pi-1", "--epoch", "1", "--order-by=name", "--name", "epoch-1"], ["epoch-1"]),
        (["--group-by", "transformation", "--least", "begun_ms", "--order-by", "transformation"], None),
    ],
)
def test_filters_leave_those_that_are_meant(api: Api, options: list[str], names: list[str] | None) -> None:
    found = json.loads(api.run("tasks", *options, "--json").stdout)["items"]
    assert [each["name"] for each in found] == (names or ["step-51", "test", "epoch-1"])
    assert [row[0] for row in rows(api, *options)[1:]] == [each["id"] for each in found]
