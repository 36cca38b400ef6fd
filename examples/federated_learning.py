"""Federated learning on four simulated devices, captured: which hyperparameters gave what, and from whose data.

Each device is a process with readings of its own, temperature and vibration of machines, that never leave it. In every
round the server's process sends out the global model; each device trains it for some epochs on its readings and sends
the result back, the update; the average of the updates is the next global model. All that for each combination of
model, learning rate and batch size, and in the end the server tries each on readings that no device has.

Every process is an agent of its own (device-1 to device-4, fl-server) and captures its part of the same workflow. What
holds the parts together are ids: data that one process generates and another one uses has the same id in both.

                                +- device-1, its readings: train -> train -+
    initialise -> global model -+- device-2, its readings: train -> train -+-> aggregate -> global model -> ...
                                +- ...                                     +             (the last one) -> evaluate

The same seed learns the same models, whether or not anything is captured.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import secrets
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from edge_agent.capture import Data, Task, Workflow, close, use
from edge_agent.capture.recorder import Nowhere
from edge_agent.config import ConfigError, load_settings
from edge_agent.siblings import NoSpool, spools
from edge_agent.status_file import read_status_file

WORKFLOW = "federated-learning"
SERVER = "fl-server"
TEST_READINGS = 500
"""Of each place."""
MODELS = ("linear", "quadratic")
RATES = (0.02, 0.3)
BATCHES = (10, 50)


class Place(NamedTuple):
    """Where a device is: how many readings it has, and how warm it is there."""

    readings: int
    usual: float


DEVICES = {
    "device-1": Place(250, -0.8),
    "device-2": Place(400, -0.2),
    "device-3": Place(650, 0.1),
    "device-4": Place(1_000, 0.5),
}
Weights = list[float]
Example = tuple[tuple[float, ...], int]
"""The features of a reading, and whether the machine runs well."""


# The learning


class Reading(NamedTuple):
    """Temperature and vibration of a machine, in no unit in particular, and whether it runs well."""

    temperature: float
    vibration: float
    is_well: int


def readings(count: int, usual: float, rng: random.Random) -> Iterator[Reading]:
    """A machine runs well, as a rule, if it is neither too cold nor too hot and shakes little."""
    for _ in range(count):
        temperature, vibration = rng.gauss(usual, 1.0), rng.gauss(0.0, 1.0)
        how_well = 2.4 - 1.2 * temperature - 1.5 * vibration - 1.6 * temperature**2 - 0.4 * vibration**2
        yield Reading(temperature, vibration, int(rng.random() < logistic(2.0 * how_well)))


def examples(found: Sequence[Reading], model: str) -> list[Example]:
    """Readings as a model sees them."""
    if model == "linear":
        return [((1.0, x, y), is_well) for x, y, is_well in found]
    return [((1.0, x, y, x * x, x * y, y * y), is_well) for x, y, is_well in found]


def probability(weights: Weights, features: tuple[float, ...]) -> float:
    """Of running well: logistic regression."""
    return logistic(sum(map(float.__mul__, weights, features)))


def logistic(value: float) -> float:
    """Between 0 and 1, and never so near to one of them that its logarithm is infinite."""
    return 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, value))))


def trained(weights: Weights, known: Sequence[Example], rate: float, batch: int, rng: random.Random) -> Weights:
    """The weights after one epoch: all examples in a new order, a step down the gradient after each batch of them."""
    weights, order = list(weights), list(known)
    rng.shuffle(order)
    for begin in range(0, len(order), batch):
        part = order[begin : begin + batch]
        gradient = [0.0] * len(weights)
        for features, label in part:
            error = probability(weights, features) - label
            for place, feature in enumerate(features):
                gradient[place] += error * feature
        for place, slope in enumerate(gradient):
            weights[place] -= rate * slope / len(part)
    return weights


class Score(NamedTuple):
    """How far from the truth a model is (mean log loss), and how often it is right."""

    loss: float
    accuracy: float


def score(weights: Weights, known: Sequence[Example]) -> Score:
    """How well a model does on examples."""
    loss, right = 0.0, 0
    for features, label in known:
        found = probability(weights, features)
        loss -= math.log(found if label else 1.0 - found)
        right += (found > 0.5) == bool(label)
    return Score(loss / len(known), right / len(known))


# What server and devices say to each other


class Combination(NamedTuple):
    """What is tried: a model and the hyperparameters that it is trained with."""

    model: str
    rate: float
    batch: int

    def __str__(self) -> str:
        return f"{self.model}-{self.rate}-{self.batch}"


class Plan(NamedTuple):
    """All that is decided before it begins. `run` is in all ids, so that a second run is about models of its own."""

    run: str
    seed: int
    rounds: int
    local_epochs: int
    gateway: str
    spool: str

    def hyperparameters(self, combination: Combination, workflow: Workflow) -> Data:
        """The same for whoever uses them: nobody has generated them."""
        return Data(f"{self.run}-{combination}", workflow.id, combination._asdict())

    def global_model(self, combination: Combination, round_number: int) -> str:
        """The id of the model that a round has made; round 0 is what the first one begins with."""
        return f"{self.run}-{combination}-round-{round_number}"


class Job(NamedTuple):
    """From the server: train this model."""

    combination: Combination
    round_number: int
    weights: Weights


class Epoch(NamedTuple):
    """What a device knows of an epoch that it has trained. They are counted over all rounds."""

    device: str
    epoch: int
    loss: float
    accuracy: float
    begun_ms: int
    ended_ms: int


class Update(NamedTuple):
    """From a device: the model that it has made of it, the id of its data, and how that went."""

    id: str
    weights: Weights
    readings: int
    epochs: list[Epoch]


# Devices


def run_device(name: str, plan: Plan, server: Connection) -> None:
    """In a process of its own: train until the server has no more to do."""
    rng = random.Random(f"{plan.seed} {name}")
    own = list(readings(*DEVICES[name], rng))
    known = {model: examples(own, model) for model in MODELS}
    with capturing(name, plan) as workflow:
        while (job := server.recv()) is not None:
            server.send(train(name, plan, workflow, known[job.combination.model], job))


def train(name: str, plan: Plan, workflow: Workflow, known: Sequence[Example], job: Job) -> Update:
    """The epochs of one round on one device. Each task has the id of the model that it makes.

    The hyperparameters come last of what it uses: of an attribute that several have, the last one counts.
    """
    combination, round_number, weights = job
    began_with = plan.global_model(combination, round_number - 1)
    hyperparameters = plan.hyperparameters(combination, workflow)
    own = Data(f"{plan.run}-{name}-readings", workflow.id, {"readings": len(known)})
    epochs = []
    for local in range(1, plan.local_epochs + 1):
        made = f"{plan.global_model(combination, round_number)}-{name}-epoch-{local}"
        task = Task(made, workflow, "train", dependencies=[began_with])
        task.begin([Data(began_with, workflow.id), own, hyperparameters])
        begun_ms = time.time_ns() // 1_000_000
        epoch = (round_number - 1) * plan.local_epochs + local
        rng = random.Random(f"{plan.seed} {name} {combination} {epoch}")
        weights = trained(weights, known, combination.rate, combination.batch, rng)
        found = score(weights, known)
        ended_ms = time.time_ns() // 1_000_000
        attributes = {"epoch": epoch, "round": round_number, **found._asdict()}
        task.end([Data(made, workflow.id, attributes, derivations=[began_with, own, hyperparameters])])
        epochs.append(Epoch(name, epoch, *found, begun_ms, ended_ms))
        began_with = made
    return Update(began_with, weights, len(known), epochs)


# The server


class Result(NamedTuple):
    """What came of a combination: the id of its last global model, how well it does, and how it was trained."""

    combination: Combination
    global_model: str
    score: Score
    epochs: list[Epoch]

    def last_epochs(self) -> list[Epoch]:
        """One of each device."""
        return self.epochs[-len(DEVICES) :]


def run_server(plan: Plan, devices: Sequence[Connection]) -> Iterator[Result]:
    """Try all combinations, one after the other."""
    rng = random.Random(f"{plan.seed} {SERVER}")
    unseen = [each for place in DEVICES.values() for each in readings(TEST_READINGS, place.usual, rng)]
    known = {model: examples(unseen, model) for model in MODELS}
    with capturing(SERVER, plan) as workflow:
        for combination in map(Combination._make, product(MODELS, RATES, BATCHES)):
            weights = initialise(plan, workflow, combination, len(known[combination.model][0][0]))
            epochs: list[Epoch] = []
            for round_number in range(1, plan.rounds + 1):
                for device in devices:
                    device.send(Job(combination, round_number, weights))
                updates: list[Update] = [device.recv() for device in devices]
                weights = aggregate(plan, workflow, combination, round_number, updates)
                epochs += sorted((each for update in updates for each in update.epochs), key=lambda each: each.epoch)
            found = evaluate(plan, workflow, combination, weights, known[combination.model])
            yield Result(combination, plan.global_model(combination, plan.rounds), found, epochs)
        for device in devices:
            device.send(None)


def initialise(plan: Plan, workflow: Workflow, combination: Combination, features: int) -> Weights:
    """The global model that the first round begins with. It knows nothing."""
    made = plan.global_model(combination, 0)
    hyperparameters = plan.hyperparameters(combination, workflow)
    task = Task(made, workflow, "initialise").begin(hyperparameters)
    weights = [0.0] * features
    task.end(Data(made, workflow.id, {"round": 0}, derivations=hyperparameters))
    return weights


def aggregate(
    plan: Plan, workflow: Workflow, combination: Combination, round_number: int, updates: Sequence[Update]
) -> Weights:
    """The next global model: the average of the updates, in which each counts as much as its device has readings."""
    made = plan.global_model(combination, round_number)
    ids = [update.id for update in updates]
    hyperparameters = plan.hyperparameters(combination, workflow)
    task = Task(made, workflow, "aggregate", dependencies=ids)
    task.begin([*(Data(each, workflow.id) for each in ids), hyperparameters])
    total = sum(update.readings for update in updates)

    def mean(values: Sequence[float]) -> float:
        return sum(value * update.readings for value, update in zip(values, updates, strict=True)) / total

    weights = [mean(of_all) for of_all in zip(*(update.weights for update in updates), strict=True)]
    last = [update.epochs[-1] for update in updates]
    attributes = {"round": round_number, "epoch": last[0].epoch, "loss": mean([epoch.loss for epoch in last])}
    task.end([Data(made, workflow.id, attributes, derivations=ids)])
    return weights


def evaluate(
    plan: Plan, workflow: Workflow, combination: Combination, weights: Weights, unseen: Sequence[Example]
) -> Score:
    """How good the last global model of a combination is."""
    model = plan.global_model(combination, plan.rounds)
    hyperparameters = plan.hyperparameters(combination, workflow)
    task = Task(f"{model}-evaluation", workflow, "evaluate", dependencies=[model])
    task.begin([Data(model, workflow.id), hyperparameters])
    found = score(weights, unseen)
    task.end([Data(f"{model}-score", workflow.id, found._asdict(), derivations=[model])])
    return found


# Processes


@contextmanager
def capturing(name: str, plan: Plan) -> Iterator[Workflow]:
    """The workflow in this process, which is an agent of this name with a spool of its own from here on."""
    os.environ["THREADLINE_AGENT"] = name
    os.environ["THREADLINE_GATEWAY"] = plan.gateway
    if plan.spool:
        os.environ["THREADLINE_SPOOL"] = str(Path(plan.spool, name))
    if not plan.gateway:
        use(Nowhere())  # the end of the program says so once, and not every process
    with Workflow(WORKFLOW, {"run": plan.run, "seed": plan.seed, "local_epochs": plan.local_epochs}) as workflow:
        yield workflow
    close()


def learn(plan: Plan) -> Iterator[Result]:
    """Start the devices, and be the server."""
    spawning = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        connections = []
        for name in DEVICES:
            ours, theirs = spawning.Pipe()
            device = spawning.Process(target=run_device, args=(name, plan, theirs), name=name)
            device.start()
            stack.callback(device.join)
            connections.append(stack.enter_context(ours))
            theirs.close()
        yield from run_server(plan, connections)


# The command


def main() -> None:
    arguments = _parser().parse_args()
    try:
        settings = load_settings(gateway=arguments.gateway)
    except ConfigError as error:
        sys.exit(f"{sys.argv[0]}: {error}")
    plan = Plan(
        run=f"run-{secrets.token_hex(3)}",
        seed=arguments.seed,
        rounds=arguments.rounds,
        local_epochs=arguments.epochs,
        gateway=settings.gateway,
        spool=settings.spool,
    )
    if arguments.json:
        _print(json.dumps(_document(plan, list(learn(plan)))))
    else:
        _print_table(plan, learn(plan))
    print(_captured(plan), file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Federated learning on four simulated devices, captured.")
    parser.add_argument("--gateway", metavar="HOST:PORT", help="where to send what is captured (THREADLINE_GATEWAY)")
    parser.add_argument("--rounds", type=_count, default=5, help="of training and averaging (5)")
    parser.add_argument("--epochs", type=_count, default=2, help="that a device trains in each round (2)")
    parser.add_argument("--seed", type=int, default=1, help="of readings and training (1)")
    parser.add_argument("--json", action="store_true", help="print everything that was learnt as JSON")
    return parser


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"at least 1, not {count}")
    return count


def _print_table(plan: Plan, results: Iterator[Result]) -> None:
    lengths = " of ".join(
        f"{count} {what}{'s' * (count != 1)}" for count, what in ((plan.rounds, "round"), (plan.local_epochs, "epoch"))
    )
    _print(f"{lengths} on {len(DEVICES)} devices")
    _print(f"{'model':10} {'rate':>5} {'batch':>5}  {'training loss of devices 1-4':28}  accuracy")
    for each in results:
        losses = " ".join(f"{epoch.loss:6.3f}" for epoch in each.last_epochs())
        _print("{:10} {:5} {:5}".format(*each.combination) + f"  {losses:28}  {each.score.accuracy:8.4f}")


def _print(line: str) -> None:
    """A line for whoever reads. If nobody does any more (`| head`), it learns on: that is captured all the same."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _captured(plan: Plan) -> str:
    """Where to find what was captured, and what to do if it is not there yet."""
    if not plan.gateway:
        return "Nothing is captured: give --gateway HOST:PORT, or set THREADLINE_GATEWAY."
    lines = [f"Captured as {plan.run} of the workflow {WORKFLOW}, for the gateway {plan.gateway}."]
    if waiting := _waiting(plan):
        lines[0] += " It has not taken all of it: the rest waits on disk for the next run, or for"
    for spool in waiting:
        command = ["threadline-agent", "send", "--spool", spool, "--gateway", plan.gateway]
        lines.append(f"    {shlex.join(command)}")
    return "\n".join(lines)


def _waiting(plan: Plan) -> list[str]:
    """Spools of the processes that hold something which the gateway has not taken."""
    found = []
    for name in (*DEVICES, SERVER):
        settings = load_settings(name=name, spool=str(Path(plan.spool, name)) if plan.spool else "")
        try:
            found += [each.spool for each in spools(settings) if read_status_file(each.spool)["unacknowledged"]]
        except (NoSpool, OSError, ValueError):
            continue  # its agent could not be started, and has said so
    return found


def _document(plan: Plan, results: Sequence[Result]) -> dict[str, Any]:
    return {
        "run": plan.run,
        "results": [
            {
                **each.combination._asdict(),
                **each.score._asdict(),
                "global_model": each.global_model,
                "epochs": [epoch._asdict() for epoch in each.epochs],
            }
            for each in results
        ],
    }


if __name__ == "__main__":
    main()
