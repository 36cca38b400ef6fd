"""`threadline load`: a fleet of simulated devices against the chain, measured from end to end."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threadline.heeded import heeded
from threadline.terminal import address, fail, print_line

if TYPE_CHECKING:
    from threadline.load.chain import Chain

_MOST_S = 7 * 24 * 3600.0
_MOST_RATE = 1e7
_MOST_DEVICES = 20_000
_HERE = ("broker", "gateway", "translator", "spark", "api")
_TOLD = ("gateway", "translator", "spark")


def load(
    devices: Annotated[int, typer.Option(help="How many devices.", min=1, max=_MOST_DEVICES)] = 8,
    rate: Annotated[
        float | None,
        typer.Option(
            help="What all devices together say in a second: origins (query), tasks (workflow) or readings (light)."
            " With --find-max, what to begin with. As a rule 250 origins, 2 tasks or 0.2 readings of each device.",
            min=0.01,
            max=_MOST_RATE,
        ),
    ] = None,
    duration: Annotated[str, typer.Option(metavar="TIME", help="How long they speak: 30s, 5m, 1h.")] = "30s",
    profile: Annotated[
        str,
        typer.Option(
            help="What a device says. query: results of 50 readings each, a quarter of them shared with the result"
            " before. workflow: tasks of 100 attributes, as in the ProvLight paper. light: one small reading."
        ),
    ] = "query",
    processes: Annotated[
        int | None,
        typer.Option(
            help="Processes that the devices live in. As a rule one per core, or one for every 100 devices if that is"
            " more.",
            min=1,
            max=1024,
        ),
    ] = None,
    find_max: Annotated[
        bool, typer.Option("--find-max", help="Find the highest rate that is sustained, step by step.")
    ] = False,
    step: Annotated[str, typer.Option(metavar="TIME", help="--find-max: how long each rate lasts.")] = "20s",
    users: Annotated[
        int,
        typer.Option(
            help="So many users ask the API meanwhile, of whom one follows the live events (needs Locust).",
            min=0,
            max=10_000,
        ),
    ] = 0,
    report: Annotated[Path | None, typer.Option(help="Write a report with plots: one HTML file.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures as JSON.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Keep log, store and spools here. As a rule they are removed at the end.")
    ] = None,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Use the embedded MQTT broker even if Mosquitto is installed.")
    ] = False,
    without_spark: Annotated[
        bool, typer.Option("--without-spark", help="Leave Spark and the API out: up to the log only.")
    ] = False,
    spool_bytes: Annotated[int, typer.Option(help="Size of each device's spool.", min=64 << 10)] = 64 << 20,
    when_full: Annotated[str, typer.Option(help="What a device does then: drop-oldest or block.")] = "drop-oldest",
    qos: Annotated[int, typer.Option(help="QoS of what devices publish.", min=0, max=2)] = 1,
    drain: Annotated[
        str,
        typer.Option(metavar="TIME", help="How long everything may take to arrive, once it comes no nearer."),
    ] = "60s",
    connect: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="How long all devices may take to connect. As a rule 30 s, and 0.1 s for each."
        ),
    ] = None,
    gateway: Annotated[
        str | None, typer.Option(help="A gateway that runs, HOST:PORT: nothing is started here then.")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="With --gateway: folder of the log, to look for losses.")] = None,
    store: Annotated[str | None, typer.Option(help="With --gateway: the store, sqlite:///FILE, for results.")] = None,
    api: Annotated[str | None, typer.Option(help="With --gateway: the API's address, http://..., for --users.")] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(help="With --gateway: NAME=HOST:PORT of the metrics of gateway, translator or spark."),
    ] = None,
    process: Annotated[
        list[str] | None, typer.Option(help="With --gateway: NAME=PID of a component, to see what it costs.")
    ] = None,
) -> None:
    """Let a fleet of simulated devices loose on the chain, and measure it from end to end.

    The devices are real agents with real spools. Unless --gateway is given, broker, gateway, translator, Spark and API
    are started for them. Told are the time of callers, rates, how late results are visible, what each component costs,
    and what was lost: if anything was, the exit code is 1. Ctrl-C ends it with what was measured so far. A TIME may be
    a plain number of seconds, too.
    """
    from edge_agent.config import ConfigError, Settings
    from threadline.lab import ServiceFailed
    from threadline.load.breakdown import Breakdown
    from threadline.load.chain import Stopped
    from threadline.load.display import Display
    from threadline.load.document import document
    from threadline.load.fleet import usual_processes
    from threadline.load.outcome import LoadOptions
    from threadline.load.profiles import profile_named
    from threadline.load.questions import MISSING, is_installed
    from threadline.load.report import page
    from threadline.load.run import CannotLoad, run
    from threadline.load.summary import lines

    settings: dict[str, Any] = {"spool_bytes": spool_bytes, "when_full": when_full, "qos": qos}
    try:
        wanted = profile_named(profile)
        Settings(**settings)
    except (ValueError, ConfigError) as error:
        fail(str(error))
    if users and not is_installed():
        fail(MISSING)
    duration_s = _seconds("--duration", duration, 0.1, _MOST_S)
    step_s = _seconds("--step", step, 8, 3600)
    drain_s = _seconds("--drain", drain, 1, _MOST_S)
    connect_s = 30.0 + devices / 10 if connect is None else _seconds("--connect", connect, 1, _MOST_S)
    _try_outputs({"--report": report, "--json": json_file})
    if users and (without_spark if gateway is None else api is None):
        fail("there is no API to ask: give --api with --gateway, or leave out --without-spark")
    if gateway is not None:
        for option, is_given in (("--embedded", embedded), ("--without-spark", without_spark and not find_max)):
            if is_given:
                fail(f"{option} says how a chain is started, and goes without --gateway")
    running = _running(gateway, log, store, api, metrics or [], process or [])
    if find_max and not without_spark and running is not None and not running.tells_how_far:
        fail(
            "--find-max has to know how far Spark is behind: give --store, or --metrics of translator and spark, or"
            " --without-spark for the way to the log only"
        )
    if running is not None:
        _check_metrics(running)
    options = LoadOptions(
        profile=wanted,
        devices=devices,
        rate=devices * wanted.usual_rate if rate is None else rate,
        duration_s=duration_s,
        processes=min(devices, processes or usual_processes(devices)),
        find_max=find_max,
        step_s=step_s,
        users=users,
        settings=settings,
        folder=folder,
        embedded=embedded,
        with_spark=not without_spark,
        chain=running,
        drain_s=drain_s,
        connect_s=connect_s,
    )
    stop = threading.Event()
    try:
        with _listening(stop) as signals, Display(options) as display:
            outcome = run(options, stop, display)
    except CannotLoad as error:
        fail(str(error))
    except (ServiceFailed, Breakdown) as error:
        fail(str(error), 1)
    except Stopped:
        fail("stopped before anything was measured", 128 + signals[0])
    except KeyboardInterrupt:
        fail("stopped at once: what was measured is thrown away", 128 + signals[-1])
    unwritten = (
        [] if json_file is None else _written("--json", json_file, json.dumps(document(outcome), indent=1) + "\n")
    )
    unwritten += [] if report is None else _written("--report", report, page(outcome))
    try:
        for line in lines(outcome):
            print_line(line)
    finally:
        for text in unwritten:
            with suppress(OSError):
                typer.echo(f"threadline: {text}", err=True)
    raise typer.Exit(0 if outcome.is_whole and not unwritten else 1)


def _seconds(option: str, text: str, least: float, most: float) -> float:
    """What an option says of a time, or the end with a line about it."""
    from threadline.durations import parse_duration_s

    try:
        found = parse_duration_s(text)
    except ValueError as error:
        fail(f"{option} {error}")
    if not least <= found <= most:
        fail(f"{option} {text} is not between {least:g} s and {most:g} s")
    return found


def _try_outputs(files: dict[str, Path | None]) -> None:
    """Whoever has waited for a run to end should not be told then that its figures have no place."""
    from threadline.load.output_file import CannotWrite, try_output

    given = {option: file for option, file in files.items() if file is not None}
    if len({os.path.realpath(file) for file in given.values()}) < len(given):
        fail(f"{' and '.join(given)} are the same file")
    for option, file in given.items():
        try:
            try_output(file)
        except CannotWrite as error:
            fail(f"{option} {error}")


def _running(
    gateway: str | None, log: Path | None, store: str | None, api: str | None, metrics: list[str], process: list[str]
) -> Chain | None:
    """A chain that runs already, if there is one."""
    from collector.store import StoreError, open_store
    from threadline.load.chain import Chain

    if gateway is None:
        for option, value in (
            *(("--log", log), ("--store", store), ("--api", api), ("--metrics", metrics), ("--process", process)),
        ):
            if value:
                fail(f"{option} says where a running chain is, and goes with --gateway")
        return None
    host, port = address("--gateway", gateway, least_port=1)
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        fail(f"--gateway {gateway}: there is no host {host}, or nobody knows its address")
    if store is not None:
        try:
            open_store(store).reader().close()
        except StoreError as error:
            fail(f"--store {error}")
    if api is not None and not api.startswith(("http://", "https://")):
        fail(f"--api {api} is no address such as http://127.0.0.1:8080")
    places = dict(_named("--metrics", each, _TOLD) for each in metrics)
    for text in places.values():
        address("--metrics", text, least_port=1)
    if log is not None:
        _check_log(log)
    pids: dict[str, int] = {}
    for name, text in (_named("--process", each, _HERE) for each in process):
        if not text.isdecimal() or not Path(f"/proc/{text}").is_dir():
            fail(f"--process {name}={text}: there is no such process")
        pids[name] = int(text)
    return Chain(gateway, log, store, api, pids, places)


def _check_log(folder: Path) -> None:
    from collector.log import LogReader

    if not folder.is_dir():
        fail(f"--log {folder} is no folder")
    try:
        shards = LogReader(folder).shards()
    except OSError as error:
        fail(f"--log {folder} cannot be read: {error.strerror}")
    if not shards:
        fail(f"--log {folder} holds no log: it is the folder that `threadline translate --log` writes to")


def _check_metrics(chain: Chain) -> None:
    from threadline.load.scrape import NoMetrics, check_metrics

    for name, place in chain.metrics.items():
        try:
            check_metrics(name, place)
        except NoMetrics as error:
            fail(f"--metrics {name}: {error}")


def _named(option: str, text: str, names: tuple[str, ...]) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or name not in names:
        fail(f"{option} {text} is not NAME=VALUE with a name of {', '.join(names)}")
    return name, value


@contextmanager
def _listening(stop: threading.Event) -> Iterator[list[int]]:
    """The first signal ends the run with what was measured; the second one does not wait for it, unless it is SIGHUP:
    the kernel and the shell both tell of a terminal that is closed. More would disturb the cleaning. All that counted.
    Afterwards signals are what they were: it may take long to write what was measured, to a pipe for instance."""
    came: list[int] = []

    def signalled(number: int, _: FrameType | None) -> None:
        if not stop.is_set():
            came.append(number)
            stop.set()
        elif number != signal.SIGHUP and len(came) < 2:
            came.append(number)
            raise KeyboardInterrupt

    with heeded(signalled):
        yield came


def _written(option: str, file: Path, text: str) -> list[str]:
    """What went wrong, if anything did: all else that was measured should be told all the same."""
    from threadline.load.output_file import CannotWrite, write_output

    try:
        write_output(file, text)
    except CannotWrite as error:
        return [f"{option} {error}"]
    return []
