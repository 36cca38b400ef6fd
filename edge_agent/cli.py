"""The `threadline-agent` command: look at the plan of an app file, run it here or as an agent, see how an agent is,
send what one has left.

Commands import what they need when they run, so that `--help` is quick on a small board.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, TextIO

from edge_agent.signals import OutputClosed, OutputFailed, Signalled, Signals, abandon

if TYPE_CHECKING:
    from pathlib import Path

    from edge_agent.config import Settings
    from edge_agent.stream import Plan

_DRAIN_HELP = "how long to wait at the end until everything is acknowledged (default: 10)"
_EPILOG = """\
An app file is a Python file with a function build() that returns a Plan, or with a function main(agent) that may
capture what it does, or with both:

    from edge_agent.capture import Task, Workflow
    from edge_agent.stream import Count, Plan, minutes

    def build():
        plan = Plan("busy-doors")
        plan.source("doors", read_doors).key_by("door").window(minutes(5)).aggregate(Count()).sink("counts")
        return plan

    def main(agent):
        with Workflow("calibration"), Task("north"):
            ...

With --gateway (or THREADLINE_GATEWAY) run is an agent: what the app captures and delivers is kept on disk until the
cloud has it; status shows how such an agent is, and send sends what one that does not run has left. Without a gateway
run prints what the plan delivers, and there is no main(agent).

exit code:
    0           done
    1           failed while running, the standard output cannot be written, or records were lost at the end;
                send: something is left
    2           could not be started, or the file of --output cannot be written
    130 or 143  stopped by SIGINT or SIGTERM
    141         nobody reads the output any more
"""
_SUFFIXES = {".dot": "dot", ".gv": "dot", ".svg": "svg", ".json": "json"}


class _Refused(Exception):
    """Something the user has to change first."""


def _standard_output() -> TextIO:
    if sys.stdout is None:  # closed by the caller
        raise OutputFailed("the standard output is closed")
    return sys.stdout


def _write(output: Path, text: str) -> None:
    """Write a file; an old one stays as it is until the new one is whole.

    What is no plain file (a link, a pipe, /dev/stdout) is written to.
    """
    import stat

    try:
        old = output.lstat().st_mode
    except FileNotFoundError:
        old = None
    if old is not None and not stat.S_ISREG(old):
        output.write_text(text, encoding="utf-8")
        return
    mode = 0o666 if old is None else stat.S_IMODE(old)
    new = output.with_name(f".{os.urandom(8).hex()}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as out:
            if old is not None:
                os.fchmod(out.fileno(), mode)
            out.write(text)
        new.replace(output)
    except FileExistsError:  # not ours
        raise
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _build(path: str) -> Plan:
    from edge_agent.app_file import load

    return load(path).build()


def _plan(arguments: argparse.Namespace, signals: Signals) -> int:
    from pathlib import Path

    from protocol.plan_picture import to_dot, to_svg, to_text

    output = Path(arguments.output) if arguments.output else None
    form = arguments.format or (_SUFFIXES.get(output.suffix.lower()) if output else None) or "text"
    document = _build(arguments.app).document()
    match form:
        case "dot":
            text = to_dot(document)
        case "svg":
            text = to_svg(document)
        case "json":
            text = document.to_json() + "\n"
        case _:
            text = to_text(document)
    if output is None:
        signals.print(text, _standard_output())
        return 0
    try:
        _write(output, text)
    except OSError as error:
        raise _Refused(f"{output} cannot be written: {error.strerror}") from error
    return 0


def _run(arguments: argparse.Namespace, signals: Signals) -> int:
    from edge_agent.config import ConfigError, load_settings

    try:
        settings = load_settings(
            arguments.config, name=arguments.name, gateway=arguments.gateway, spool=arguments.spool
        )
    except ConfigError as error:
        raise _Refused(str(error)) from error
    if settings.gateway:
        return _run_connected(arguments, settings, signals)
    for option in ("name", "spool", "config"):
        if getattr(arguments, option):
            raise _Refused(f"--{option} is for an agent, and there is no gateway: give --gateway HOST:PORT")
    return _run_here(arguments, signals)


def _run_connected(arguments: argparse.Namespace, settings: Settings, signals: Signals) -> int:
    import logging

    from edge_agent.agent import AgentFailed
    from edge_agent.app_file import load
    from edge_agent.config import ConfigError
    from edge_agent.connected_run import ConnectedRun
    from edge_agent.report import printable
    from edge_agent.spool import SpoolError
    from edge_agent.stream import StreamError
    from protocol.plan import PlanError

    for option, default in (("sink", []), ("limit", None), ("format", "text")):
        if getattr(arguments, option) != default:
            raise _Refused(f"--{option} is for a run without a gateway: with one, nothing is printed")
    logging.basicConfig(level=logging.INFO, format="threadline-agent: %(levelname)s %(message)s", stream=sys.stderr)
    try:
        run = ConnectedRun(load(arguments.app), settings, arguments.provenance)
    except (ConfigError, SpoolError, OSError) as error:
        raise _Refused(str(error)) from error
    code = 0
    try:
        run.run(_say)
    except Signalled as stop:
        signals.caught()
        _say(f"stopped by {signal.Signals(stop.number).name}")
        code = 128 + stop.number
    except (StreamError, AgentFailed) as error:
        _say(printable(str(error)), error=error if arguments.traceback else None)
        code = 1
    except PlanError as error:
        _say(printable(str(error)))
        code = 2
    except SystemExit as leaving:
        _say(f"the app called sys.exit({leaving.code!r}), which ended the run")
        code = 1
    except Exception as error:
        text = f"{_place(arguments.app, error)}the app raised {type(error).__name__}: {printable(str(error))}"
        _say(text, error=error if arguments.traceback else None)
        code = 1
    _say(run.close(arguments.drain))
    return code or int(run.has_lost)


def _place(path: str, error: Exception) -> str:
    """The last line of the app file that an error came through."""
    from pathlib import Path
    from traceback import extract_tb

    file = str(Path(path))  # as it was compiled
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == file]
    return f"{path}:{lines[-1]}: " if lines else ""


def _status(arguments: argparse.Namespace, signals: Signals) -> int:
    from edge_agent.agent_status import StatusError, read_status, status_text
    from edge_agent.config import ConfigError, load_settings

    try:
        settings = load_settings(arguments.config, name=arguments.name, spool=arguments.spool)
        status = read_status(settings)
    except (ConfigError, StatusError) as error:
        raise _Refused(str(error)) from error
    signals.print(status_text(status, as_json=arguments.format == "json"), _standard_output())
    return 0


def _send(arguments: argparse.Namespace, signals: Signals) -> int:
    import logging

    from edge_agent.background import Background
    from edge_agent.config import ConfigError, load_settings
    from edge_agent.interruptible import interruptible
    from edge_agent.siblings import NoSpool, send_left, spools

    try:
        settings = load_settings(
            arguments.config, name=arguments.name, gateway=arguments.gateway, spool=arguments.spool
        )
        if not settings.gateways:
            raise _Refused("no gateway to send to: give --gateway HOST:PORT")
        found = spools(settings)
    except (ConfigError, NoSpool) as error:
        raise _Refused(str(error)) from error
    logging.basicConfig(level=logging.WARNING, format="threadline-agent: %(levelname)s %(message)s", stream=sys.stderr)
    stop, over = threading.Event(), threading.Event()
    done: list[bool] = []

    def send() -> None:
        try:
            for each in found:
                if not stop.is_set():
                    done.append(send_left(each, arguments.drain, stop, _say))
        finally:
            over.set()

    # On a thread of its own: a signal must not cut an agent off in the middle of its start or its end.
    Background(target=send, name="send", daemon=True).start()
    try:
        with interruptible():
            over.wait()
    except Signalled as stopped:
        signals.caught()
        _say(f"stopped by {signal.Signals(stopped.number).name}")
        stop.set()
        over.wait()
        return 128 + stopped.number
    return 0 if len(done) == len(found) and all(done) else 1


def _run_here(arguments: argparse.Namespace, signals: Signals) -> int:
    from edge_agent.garbage import collect_seldom
    from edge_agent.report import LimitReached, Printer, printable
    from edge_agent.stream import Engine, Feeder, StreamError
    from protocol.plan import DELIVERING, ORIGINS, delivering_name

    _standard_output()  # nothing is taken from the sources if it has nowhere to go
    plan = _build(arguments.app)
    if arguments.provenance:
        plan.provenance = arguments.provenance
    document = plan.document()
    for node in document.nodes:
        if node.operator in ("receive", "send"):
            raise _Refused(
                f"{arguments.app}: operator {node.name!r} is a {node.operator}, and there is no other agent here"
            )
    known = [delivering_name(node) for node in document.nodes if node.operator in DELIVERING]
    for sink in arguments.sink:
        if sink not in known:
            raise _Refused(f"{arguments.app}: the plan has no sink {sink!r}, only {', '.join(known)}")
    sources = [node.name for node in document.nodes if node.operator in ORIGINS]
    printer = Printer(
        lambda text: signals.print(text, _standard_output()),
        provenance=plan.provenance != "none",
        as_json=arguments.format == "json",
        sinks=frozenset(arguments.sink),
        limit=arguments.limit,
    )
    engine = Engine(plan, printer)

    def summary() -> str:
        metrics = engine.metrics
        return printer.summary(sum(metrics[name].taken for name in sources))

    collect_seldom()
    feeder: Feeder | None = None
    try:
        feeder = Feeder(plan, engine)
        feeder.run()
    except LimitReached:
        _say(f"stopped after {printer.shown} deliver{'y' if printer.shown == 1 else 'ies'}: {summary()}")
    except Signalled as stop:
        signals.caught()
        _say(f"stopped by {signal.Signals(stop.number).name}: {summary()}")
        raise
    except StreamError as error:
        _say(printable(str(error)), error=error if arguments.traceback else None)
        _say(summary())
        return 1
    except SystemExit as leaving:
        _say(f"the app called sys.exit({leaving.code!r}), which ended the run: {summary()}")
        return 1
    else:
        _say(summary())
    finally:
        if feeder is not None:
            feeder.stop()
    return 0


def _say(text: str, error: BaseException | None = None) -> None:
    """To the user, apart from the output; that it cannot be said is no reason to fail."""
    import traceback

    try:
        if error is not None:
            traceback.print_exception(error, file=sys.stderr)
        for line in text.splitlines():
            print(f"threadline-agent: {line}", file=sys.stderr)
        sys.stderr.flush()
    except OSError:
        abandon(sys.stderr)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds


def _positive(text: str) -> int:
    try:
        number = int(text) if text.isascii() and text.isdigit() else 0
    except ValueError:  # more digits than Python reads
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="threadline-agent",
        description="Stream queries and capture with provenance, on the device: look at the plan of an app file, run "
        "the app here or as an agent, see how an agent is, send what it has left.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    plan = commands.add_parser(
        "plan",
        help="show the plan of an app file",
        description="Show the plan that build() of an app file declares: its operators, and for every source and sink "
        "the largest sum of windows between them. Nothing is run.",
    )
    plan.add_argument(
        "--format",
        choices=("text", "dot", "svg", "json"),
        help="what to show it as (default: what the name of the output file ends in, else text)",
    )
    plan.add_argument("--output", metavar="FILE", help="write to this file instead of the standard output")
    plan.set_defaults(call=_plan)

    run = commands.add_parser(
        "run",
        help="run an app file, here or as an agent",
        description="Run the plan that build() of an app file declares, on the items of its own sources, in this "
        "process. Every delivery is printed as it comes, with the source readings that caused it; counts go to the "
        "standard error at the end.",
    )
    run.add_argument("--provenance", choices=("none", "genealog", "segments"), help="instead of what the plan says")
    run.add_argument(
        "--sink",
        metavar="NAME",
        action="append",
        default=[],
        help="print only what reaches this sink; may be repeated (default: all)",
    )
    run.add_argument("--limit", metavar="N", type=_positive, help="stop after N printed deliveries")
    run.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="a readable block per delivery, or a line of JSON (default: text)",
    )
    agent = run.add_argument_group(
        "as an agent",
        "With a gateway the app's plan and its main(agent) run as an agent: nothing is printed, everything is kept on "
        "disk until the cloud has acknowledged it. SIGTERM ends it cleanly.",
    )
    run.set_defaults(call=_run)

    status = commands.add_parser(
        "status",
        help="show how an agent on this machine is",
        description="Show spool, acknowledgements, drops and link of an agent, running or not.",
    )
    status.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    status.set_defaults(call=_status, traceback=False)

    send = commands.add_parser(
        "send",
        help="send what an agent that does not run has left",
        description="Send what is left in the spool of an agent that does not run, and in those of its siblings "
        "(DIR-2, DIR-3, ...: processes of one program that ran at the same time), without an app. Spools in use are "
        "left alone.",
    )
    send.set_defaults(call=_send, traceback=False)

    for group, drain_help in ((agent, _DRAIN_HELP), (send, "how long to try with each spool (default: 10)")):
        group.add_argument("--gateway", metavar="HOST:PORT", help="the MQTT-SN gateway, or several, with commas")
        group.add_argument("--drain", metavar="SECONDS", type=_seconds, default=10.0, help=drain_help)

    for group in (agent, status, send):
        group.add_argument("--name", metavar="NAME", help="the agent's name (default: the machine's)")
        group.add_argument(
            "--spool", metavar="DIR", help="where it keeps its records (default: by its name, in the state folder)"
        )
        group.add_argument("--config", metavar="FILE", help="a TOML file of settings")

    for command in (plan, run):
        command.add_argument("app", metavar="APP.py", help="the app file")
        command.add_argument("--traceback", action="store_true", help="show where an error of the app came from")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    from edge_agent.app_file import AppError
    from edge_agent.report import printable
    from protocol.plan import PlanError

    if sys.stderr is None:  # closed by the caller; print() would take the standard output instead
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", errors="backslashreplace")
    arguments = _parser().parse_args(argv)
    signals = Signals()
    try:
        with signals:
            code: int = arguments.call(arguments, signals)
            if sys.stdout is not None:
                signals.print("", sys.stdout)  # the rest of what the app has printed
            return code
    except Signalled as stop:
        signals.caught()
        return 128 + stop.number
    except OutputClosed:
        return 128 + signal.SIGPIPE
    except OutputFailed as error:
        _say(f"the output cannot be written: {error}")
        return 1
    except (AppError, PlanError, _Refused) as error:
        _say(printable(str(error)), error=error.__cause__ if arguments.traceback else None)
        return 2


if __name__ == "__main__":
    sys.exit(main())
