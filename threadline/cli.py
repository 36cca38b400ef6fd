"""The `threadline` command. Commands import what they need when they run, so that each starts fast and stays small."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated

import typer

from threadline.commands import questions
from threadline.commands.forward import forward
from threadline.commands.lab import lab
from threadline.commands.load import load
from threadline.commands.serve import serve
from threadline.commands.store import store_app
from threadline.logs import LogFormat, configure_logging
from threadline.terminal import address, fail, print_line

_MOST_HOURS = 24 * 366 * 1000  # that somebody may mean

app = typer.Typer(
    name="threadline",
    help="Fine-grained provenance for sensor streams: from small boards to the cloud.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # brackets are what they are, and flags have no type
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


@app.callback()
def main(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
    log_format: Annotated[
        LogFormat, typer.Option(help="Logs as lines for people, or as JSON.", envvar="THREADLINE_LOG_FORMAT")
    ] = LogFormat.TEXT,
) -> None:
    configure_logging(logging.DEBUG if verbose else logging.INFO, log_format)


@app.command()
def gateway(
    listen: Annotated[str, typer.Option(help="UDP address for devices, HOST:PORT (port 0: a free one).")] = (
        "127.0.0.1:1884"
    ),
    mqtt: Annotated[str, typer.Option(help="The MQTT broker, HOST:PORT.")] = "127.0.0.1:1883",
    state: Annotated[Path | None, typer.Option(help="Folder for sessions; without it they end with the process.")] = (
        None
    ),
    predefined: Annotated[Path | None, typer.Option(help="TOML file of predefined topic ids.")] = None,
    open_: Annotated[
        bool, typer.Option("--open", help="Let anybody connect. Needed to listen on more than loopback.")
    ] = False,
    metrics: Annotated[str | None, typer.Option(help="Serve Prometheus metrics on HOST:PORT.")] = None,
    gateway_id: Annotated[int, typer.Option(help="The id in ADVERTISE and GWINFO.", min=1, max=255)] = 1,
    advertise: Annotated[
        str | None, typer.Option(help="Broadcast or multicast address to ADVERTISE on, HOST:PORT.")
    ] = None,
    advertise_every: Annotated[float, typer.Option(help="Seconds between two ADVERTISE.", min=0.1)] = 900.0,
    mqtt_version: Annotated[
        str, typer.Option(help="MQTT version towards the broker: 5, or 3.1.1 where it has no 5.")
    ] = "5",
    max_sessions: Annotated[
        int, typer.Option(help="Sessions held at most; beyond it CONNECT meets congestion.", min=1)
    ] = (200_000),
    session_expiry: Annotated[
        float, typer.Option(help="Seconds after which the session of an absent client is forgotten.", min=1)
    ] = 7 * 24 * 3600.0,
) -> None:
    """Run the MQTT-SN gateway: devices on UDP, an MQTT broker behind it."""
    from broker.config import ConfigError, GatewayConfig, PredefinedTopics
    from broker.journal import StateUnusable
    from broker.mqtt_connection import Broker
    from broker.server import CannotListen, GatewayServer, ServerOptions, is_loopback

    listen_at = address("--listen", listen)
    try:
        if not is_loopback(listen_at) and not open_:
            fail(
                f"--listen {listen} can be reached by other machines, and devices are not authenticated: "
                "say --open if that is what you want"
            )
    except CannotListen as error:
        fail(str(error))
    if mqtt_version not in ("5", "3.1.1"):
        fail(f"--mqtt-version {mqtt_version} is neither 5 nor 3.1.1")
    host, port = address("--mqtt", mqtt, least_port=1)

    async def serve() -> None:
        options = ServerOptions(
            listen=listen_at,
            broker=Broker(host, port, version=5 if mqtt_version == "5" else 3),
            state=state,
            metrics=address("--metrics", metrics) if metrics else None,
            advertise=address("--advertise", advertise, least_port=1) if advertise else None,
            config=GatewayConfig(
                gateway_id=gateway_id,
                predefined=PredefinedTopics.load(predefined) if predefined else PredefinedTopics(),
                max_sessions=max_sessions,
                session_expiry_s=session_expiry,
                advertise_every_s=advertise_every if advertise else 0.0,
            ),
        )
        await GatewayServer(options).run()

    try:
        asyncio.run(serve())
    except (ConfigError, StateUnusable, CannotListen) as error:
        fail(str(error))


@app.command()
def translate(
    mqtt: Annotated[str, typer.Option(help="The MQTT broker, HOST:PORT.")] = "127.0.0.1:1883",
    log: Annotated[Path, typer.Option(help="Folder of the log; it is made if need be.")] = Path("log"),
    shards: Annotated[str, typer.Option(help="Which agents: shards such as 0-15 or 1,4-6.")] = "0-15",
    commit_ms: Annotated[float, typer.Option(help="How long to gather batches for one commit.", min=0)] = 5.0,
    retire_after: Annotated[float, typer.Option(help="Seconds of silence after which an agent is retired.", min=1)] = (
        24 * 3600.0
    ),
    max_unread_bytes: Annotated[
        int, typer.Option(help="Take nothing more while so much of the log is unread; 0: take it all the same.", min=0)
    ] = 8 << 30,
    metrics: Annotated[str | None, typer.Option(help="Serve Prometheus metrics on HOST:PORT.")] = None,
) -> None:
    """Run the translator: batches from MQTT into the durable log, acknowledged when they are on disk."""
    from collector.log import parse_shards
    from collector.metrics import CannotServe
    from collector.registry import RegistryError
    from collector.translator import Translator, TranslatorOptions
    from protocol.topics import SHARDS

    try:
        wanted = parse_shards(shards, SHARDS)
    except ValueError as error:
        fail(f"--shards {error}")
    options = TranslatorOptions(
        mqtt=address("--mqtt", mqtt, least_port=1),
        log=log,
        shards=wanted,
        commit_s=commit_ms / 1000,
        retire_after_s=retire_after,
        most_unread_bytes=max_unread_bytes or None,
        metrics=address("--metrics", metrics) if metrics else None,
    )

    async def run() -> None:
        await Translator(options).run()

    try:
        asyncio.run(run())
    except (RegistryError, CannotServe, OSError) as error:
        fail(str(error))


@app.command()
def spark(
    log: Annotated[Path, typer.Option(help="Folder of the log.")] = Path("log"),
    store: Annotated[str, typer.Option(help="The store: sqlite:///FILE.")] = "sqlite:///graph.db",
    checkpoint: Annotated[Path, typer.Option(help="Folder of the checkpoint; it is made if need be.")] = (
        Path("checkpoint")
    ),
    master: Annotated[str, typer.Option(help="Where Spark runs.")] = "local[2]",
    algorithm: Annotated[str, typer.Option(help="ank-1, or ank-n: Spark's own operators.")] = "ank-1",
    levels: Annotated[
        int, typer.Option(help="How many Sends may be on the way from a source to a sink.", min=1, max=16)
    ] = 2,
    buckets: Annotated[int, typer.Option(help="Parts that the work is cut into.", min=1, max=64)] = 4,
    u_ms: Annotated[
        int | None, typer.Option(help="ank-n: for how long tuples matter; as a rule the log says it.", min=0)
    ] = None,
    delay_ms: Annotated[
        int, typer.Option(help="ank-n: how much later than others tuples may come, in ms.", min=0)
    ] = 10_000,
    partitions: Annotated[int, typer.Option(help="Tasks that work at the same time.", min=1, max=1024)] = 2,
    trigger: Annotated[str, typer.Option(help="The least time between two micro-batches: 1s, 200ms, 1m.")] = "1s",
    max_rows: Annotated[int, typer.Option(help="Rows of the log in a micro-batch at most.", min=1)] = 20_000,
    max_bytes: Annotated[int, typer.Option(help="Bytes of the log in a micro-batch at most.", min=1)] = 64 << 20,
    driver_memory: Annotated[str, typer.Option(help="Memory of Spark's JVM, such as 1g.")] = "1g",
    metrics: Annotated[str | None, typer.Option(help="Serve Prometheus metrics on HOST:PORT.")] = None,
    remove_segments_after: Annotated[
        float | None,
        typer.Option(
            help="Remove segments of the log that are so many hours old and worked through.", min=0, max=_MOST_HOURS
        ),
    ] = None,
    remove_results_after: Annotated[
        float | None,
        typer.Option(
            help="Remove results that are so many hours old and complete, and what led to them.", min=0, max=_MOST_HOURS
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Stop when all that is in the log is worked through.")] = False,
) -> None:
    """Run the Spark job: from the log to the live forward-provenance graph in the store."""
    try:
        from threadline.durations import parse_duration_s
        from threadline.spark import SparkOptions, SparkUnusable, run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "pyarrow", "numpy"):
            raise
        fail(f"{error.name} is not installed: install threadline[spark]")
    try:
        trigger_s = parse_duration_s(trigger)
    except ValueError as error:
        fail(f"--trigger {error}")
    options = SparkOptions(
        log=log,
        store=store,
        checkpoint=checkpoint,
        master=master,
        algorithm=algorithm,
        levels=levels,
        buckets=buckets,
        u_ms=u_ms,
        delay_ms=delay_ms,
        partitions=partitions,
        trigger_s=trigger_s,
        most_rows=max_rows,
        most_bytes=max_bytes,
        driver_memory=driver_memory,
        metrics=address("--metrics", metrics) if metrics else None,
        remove_segments_after_s=None if remove_segments_after is None else remove_segments_after * 3600,
        remove_results_after_s=None if remove_results_after is None else remove_results_after * 3600,
        once=once,
        verbose=logging.getLogger().isEnabledFor(logging.DEBUG),
    )
    try:
        run(options)
    except SparkUnusable as error:
        typer.echo(f"threadline: {error}", err=True)
        raise typer.Exit(1 if error.has_begun else 2) from None


questions.register(app)
app.command()(serve)
app.command()(forward)
app.command()(lab)
app.command()(load)

app.add_typer(store_app)
log_app = typer.Typer(name="log", help="Look at the durable log.", no_args_is_help=True)
app.add_typer(log_app)


@log_app.command()
def dump(
    folder: Annotated[Path, typer.Argument(help="Folder of the log.")],
    agent: Annotated[str | None, typer.Option(help="Only what this agent has sent.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Only records of this kind; may be repeated.")] = None,
    limit: Annotated[int | None, typer.Option(help="Stop after so many records.", min=1)] = None,
) -> None:
    """Print what is in the log, a line of JSON per record."""
    from collector.log import LogError
    from collector.log_view import lines

    try:
        for line in lines(folder, agent, kind or [], limit):
            print_line(line)
    except (LogError, ValueError) as error:
        fail(str(error))


@log_app.command()
def verify(folder: Annotated[Path, typer.Argument(help="Folder of the log.")]) -> None:
    """Read the whole log: checksums, order, nothing twice, nothing missing that no gap names; its registry and its id.

    Ends with 0 if it is sound, 1 if it is damaged, 2 if it cannot be looked at: there is no log, or none that can be
    read.
    """
    from collector.log import LogError
    from collector.log_view import check

    faults = 0
    try:
        for line, is_fault in check(folder):
            faults += is_fault
            print_line(line)
    except (LogError, ValueError) as error:
        fail(str(error))
    raise typer.Exit(1 if faults else 0)


@app.command()
def demo(
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Use the embedded MQTT broker even if Mosquitto is installed.")
    ] = False,
    without_spark: Annotated[
        bool, typer.Option("--without-spark", help="Leave the live graph out: it takes longest, and needs Java.")
    ] = False,
) -> None:
    """Show what works: devices, gateway, broker, log, live graph and API on this machine, for half a minute."""
    from threadline.demo import run
    from threadline.lab import ServiceFailed

    try:
        failures = run(embedded, with_spark=not without_spark)
    except ServiceFailed as error:
        fail(str(error))
    raise typer.Exit(1 if failures else 0)
