"""`threadline lab`: all services and two agents as processes on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from threadline.terminal import address, fail

_MOST_S = 366 * 24 * 3600.0  # that somebody may mean


def lab(
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Keep everything here, and go on from what is here. As a rule a folder that is removed at the end."
        ),
    ] = None,
    api: Annotated[str, typer.Option(help="Where to serve the API, HOST:PORT (port 0: a free one).")] = "127.0.0.1:0",
    gateway: Annotated[
        str, typer.Option(help="UDP address for devices, HOST:PORT (port 0: a free one).")
    ] = "127.0.0.1:0",
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Use the embedded MQTT broker even if Mosquitto is installed.")
    ] = False,
    without_spark: Annotated[
        bool,
        typer.Option("--without-spark", help="Leave the live graph out: it needs Java. The API has no store then."),
    ] = False,
    without_agents: Annotated[
        bool, typer.Option("--without-agents", help="Leave the two agents out, and run your own.")
    ] = False,
    duration: Annotated[
        float | None, typer.Option(help="Stop by itself, so many seconds after everything runs.", min=0, max=_MOST_S)
    ] = None,
) -> None:
    """Run everything on this machine until Ctrl-C: MQTT broker, gateway, translator, Spark job, API, two live agents.

    The agents watch cars: accidents-roadside finds those that have stopped, accidents-center accidents among them.
    What ends is started again. THREADLINE_LAB_ROUND_MS, 2000 if not set, says how often each car reports.
    """
    from broker.server import CannotListen, is_loopback
    from threadline.lab import ServiceFailed
    from threadline.live_lab import CannotRun, LabOptions, run

    addresses = {option: address(option, text) for option, text in (("--api", api), ("--gateway", gateway))}
    try:
        for option, (host, port) in addresses.items():
            if not is_loopback((host, port)):
                fail(
                    f"{option} {host} can be reached by other machines, and the lab is for this one: take 127.0.0.1, "
                    "or run the services one by one"
                )
        run(
            LabOptions(
                folder=folder,
                api=addresses["--api"],
                gateway=addresses["--gateway"],
                embedded=embedded,
                with_spark=not without_spark,
                with_agents=not without_agents,
                duration_s=duration,
            )
        )
    except (CannotListen, CannotRun) as error:
        fail(str(error))
    except ServiceFailed as error:
        fail(str(error), 1)
