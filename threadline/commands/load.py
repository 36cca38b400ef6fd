"""`threadline load`: a fleet of simulated devices against the chain, measured from end to end."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threadline.terminal import address, fail, print_line

if TYPE_CHECKING:
    from threadline.load.chain import Chain

_MOST_S = 7 * 24 * 3600.0
_MOST_DEVICES = 20_000
_DEVICES_OF_A_PROCESS = 250
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
        ),
    ] = None,
    duration: Annotated[float, typer.Option(help="Seconds that they speak for.", min=0.1, max=_MOST_S)] = 30.0,
    profile: Annotated[
        str,
        typer.Option(
            help="What a device says. query: results of 50 readings each, a quarter of them shared with the result"
            " before. workflow: tasks of 100 attributes, as in the ProvLight paper. light: one small reading."
        ),
    ] = "query",
    processes: Annotated[
        int | None, typer.Option(help="Processes that the devices live in. As a rule one per core.", min=1, max=1024)
    ] = None,
    find_max: Annotated[
        bool, typer.Option("--find-max", help="Find the highest rate that is sustained, step by step.")
    ] = False,
    step: Annotated[float, typer.Option(help="--find-max: seconds for each rate.", min=8, max=3600)] = 20.0,
    users: Annotated[
        int, typer.Option(help="So many users ask the API meanwhile (needs Locust).", min=0, max=10_000)
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
        float, typer.Option(help="Seconds that everything may take to arrive, once it comes no nearer.", min=1)
    ] = 60.0,
    connect: Annotated[
        float | None,
        typer.Option(help="Seconds that all devices may take to connect. As a rule 30, and 0.1 of each.", min=1),
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
    and what was lost: if anything was, the exit code is 1. Ctrl-C ends it with what was measured so far.
    """
    from edge_agent.config import ConfigError, Settings
    from threadline.lab import ServiceFailed
    from threadline.load.display import Display
    from threadline.load.fleet import FleetFailed
    from threadline.load.profiles import profile_named
    from threadline.load.questions import MISSING, is_installed
    from threadline.load.run import CannotLoad, LoadOptions, run
    from threadline.load.summary import document, lines

    settings: dict[str, Any] = {"spool_bytes": spool_bytes, "when_full": when_full, "qos": qos}
    try:
        wanted = profile_named(profile)
        Settings(**settings)
    except (ValueError, ConfigError) as error:
        fail(str(error))
    if users and not is_installed():
        fail(MISSING)
    for option, file in (("--report", report), ("--json", json_file)):
        if file is not None and not file.absolute().parent.is_dir():
            fail(f"{option} {file}: there is no folder {file.parent}")
    if users and (without_spark if gateway is None else api is None):
        fail("there is no API to ask: give --api with --gateway, or leave out --without-spark")
    running = _running(gateway, log, store, api, metrics or [], process or [])
    options = LoadOptions(
        profile=wanted,
        devices=devices,
        rate=devices * wanted.usual_rate if rate is None else rate,
        duration_s=duration,
        processes=min(devices, processes or max(os.cpu_count() or 1, -(-devices // _DEVICES_OF_A_PROCESS))),
        find_max=find_max,
        step_s=step,
        users=users,
        settings=settings,
        folder=folder,
        embedded=embedded,
        with_spark=not without_spark,
        chain=running,
        drain_s=drain,
        connect_s=30.0 + devices / 10 if connect is None else connect,
    )
    stop = threading.Event()
    _listen(stop)
    try:
        with Display(options) as display:
            outcome = run(options, stop, display)
    except CannotLoad as error:
        fail(str(error))
    except (ServiceFailed, FleetFailed) as error:
        fail(str(error), 1)
    for line in lines(outcome):
        print_line(line)
    if json_file is not None:
        _write("--json", json_file, json.dumps(document(outcome), indent=1) + "\n")
    if report is not None:
        from threadline.load.report import page

        _write("--report", report, page(outcome))
    raise typer.Exit(0 if outcome.is_whole else 1)


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
    address("--gateway", gateway, least_port=1)
    if log is not None and not log.is_dir():
        fail(f"--log {log} is no folder")
    if store is not None:
        try:
            open_store(store)
        except StoreError as error:
            fail(f"--store {error}")
    if api is not None and not api.startswith(("http://", "https://")):
        fail(f"--api {api} is no address such as http://127.0.0.1:8080")
    places = dict(_named("--metrics", each, _TOLD) for each in metrics)
    for text in places.values():
        address("--metrics", text, least_port=1)
    pids: dict[str, int] = {}
    for name, text in (_named("--process", each, _HERE) for each in process):
        if not text.isdecimal() or not Path(f"/proc/{text}").is_dir():
            fail(f"--process {name}={text}: there is no such process")
        pids[name] = int(text)
    return Chain(gateway, log, store, api, pids, places)


def _named(option: str, text: str, names: tuple[str, ...]) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or name not in names:
        fail(f"{option} {text} is not NAME=VALUE with a name of {', '.join(names)}")
    return name, value


def _listen(stop: threading.Event) -> None:
    """The first signal ends the run with what was measured; the second one does not wait for it."""

    def signalled(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signalled)


def _write(option: str, file: Path, text: str) -> None:
    try:
        file.write_text(text)
    except OSError as error:
        fail(f"{option} {file} cannot be written: {error.strerror}", 1)
