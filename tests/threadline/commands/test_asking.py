"""What all commands have in common: how they find the API, what they say if something is wrong, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest
import typer
from typer.testing import CliRunner

from tests.threadline.commands.served import Api, pipes, refused
from tests.threadline.commands.strangers import answering, said
from threadline.__main__ import main
from threadline.cli import app
from threadline.commands.impact import impact
from threadline.commands.sinks import sinks
from threadline.lab import free_port

COMMANDS = [
    ["sinks"],
    ["trace", "center/alerts@1:0"],
    ["impact", "car/readings@1:0"],
    ["tail", "--since", "start", "--count", "3"],
    ["agents"],
    ["agents", "pi-1"],
    ["tasks"],
]
PAGED = [["sinks"], ["impact", "car/readings@1:3"], ["agents"], ["tasks"]]
EXPORTS = [
    ["export", "lineage", "center/alerts@1:0"],
    ["export", "backward", "center/alerts@1:0"],
    ["export", "forward", "car/readings@1:0"],
    ["export", "impact", "car/readings@1:0"],
    ["export", "sinks"],
    ["export", "paths", "~car/.*", "center/alerts@1:0"],
    ["export", "tasks"],
    ["export", "data"],
    ["export", "workflows"],
]


@pytest.mark.parametrize("command", [*COMMANDS, *EXPORTS], ids=" ".join)
def test_every_command_has_json(api: Api, command: list[str]) -> None:
    result = api.run(*command, "--json")
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert lines and all(isinstance(line, dict) for line in lines)


@pytest.mark.parametrize("command", [*COMMANDS, *EXPORTS], ids=" ".join)
def test_every_command_says_where_it_looked_for_the_api(command: list[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    result = CliRunner().invoke(app, [*command, "--api", url, *(["--json"] if "export" in command else [])])
    refused(result, 2, f"no API at {url} (connection refused)", "start `threadline serve`", "--api", "THREADLINE_API")


def test_an_api_that_was_started_just_now_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadline.commands.asking._PATIENCE_S", 10.0)
    port = free_port()
    nothing = said(200, "application/json", b'{"vertices": [], "next": null}')
    with ExitStack() as stack:
        start = threading.Timer(0.2, lambda: stack.enter_context(answering(nothing, port)))
        start.start()
        refused(CliRunner().invoke(app, ["sinks", "--api", f"127.0.0.1:{port}"]), 1, "there are no such results")
        start.join()


def test_something_else_that_answers_is_told() -> None:
    with answering(said(200, "text/html", b"<html>")) as url:
        refused(CliRunner().invoke(app, ["sinks", "--api", url]), 2, "not as Threadline's API does (200 text/html)")
    refused(CliRunner().invoke(app, ["sinks", "--api", "ftp://x"]), 2, "write http://HOST:PORT")


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (["sinks", "--from", "yesterday"], 2, ["--from: a time is a number of ms", "ISO 8601"]),
        (["sinks", "--where", "speed"], 2, ["--where: ", "PATH OP VALUE"]),
        (["trace", "nonsense"], 2, ["'nonsense' is no id: a tuple is AGENT/STREAM@EPOCH:NUMBER"]),
        (["trace", "center/alerts@1:999"], 1, ["there is no center/alerts@1:999", "`threadline sinks` lists results"]),
        (["trace", "task:pi-1@1:999"], 1, ["`threadline tasks` lists them"]),
        (["trace", "workflow:pi-1@1:0"], 2, ["`threadline tasks --workflow workflow:pi-1@1:0`"]),
        (["impact", "task:pi-1@1:1"], 2, ["`threadline trace ID --forward`"]),
        (["impact", "--stream", "car/nothing"], 1, ["there is no stream 'nothing'"]),
        (["agents", "nobody"], 1, ["there is no agent 'nobody': `threadline agents` lists them"]),
        (["tail", "--since", "foo"], 2, ["--since: 'foo' is no id of an event"]),
        (["tasks", "--order-by=nothing"], 2, ["--order-by: there is no field nothing", "used.PATH"]),
        (["tasks", "--workflow", "x"], 2, ["--workflow: 'x' is no id of a workflow"]),
        (["export", "paths", "~(", "center/alerts@1:0", "--json"], 2, ["no regular expression"]),
        (["export", "backward", "center/alerts@1:999", "--json"], 1, ["there is no center/alerts@1:999"]),
    ],
)
def test_what_the_api_refuses_is_said_in_the_words_of_the_command(
    api: Api, command: list[str], code: int, words: list[str]
) -> None:
    result = api.run(*command)
    refused(result, code, *words)
    assert "/v1/" not in result.stderr and "Value error" not in result.stderr


def test_a_store_that_is_not_there_yet_is_told(tmp_path: Path) -> None:
    with Api(tmp_path, tmp_path / "none.db") as api:
        for command in (["sinks"], ["tail"]):
            refused(api.run(*command), 1, "none.db", "start `threadline spark`")


@pytest.mark.parametrize(
    "command", [["sinks", "--stream", "nothing"], ["agents", "--stream", "nothing"], ["tasks", "--name", "nothing"]]
)
def test_nothing_found_is_told_and_has_a_code_of_its_own(api: Api, command: list[str]) -> None:
    refused(api.run(*command), 1, "there are no such ")
    as_json = api.run(*command, "--json")
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["next"] is None


@pytest.mark.parametrize(
    "command",
    [
        *(["trace", "%"], ["sinks", "--agent", "%"], ["sinks", "--api", "%"], ["agents", "%"]),
        *(["tasks", "--where", "%"], ["tail", "--since", "%"]),
        *(["impact", "a/b@1:1", "%"], ["impact", "--stream", "%"], ["impact", "-"]),
        *(["export", "lineage", "%", "--json"], ["export", "forward", "%", "--json"]),
        *(["export", "paths", "~a", "%", "--json"], ["export", "data", "--where", "%", "--json"]),
    ],
    ids=" ".join,
)
def test_what_is_no_text_cannot_be_asked(api: Api, command: list[str]) -> None:
    given = [each.replace("%", os.fsdecode(b"a\xff")) for each in command]
    result = CliRunner().invoke(app, given, input=b"a/b@1:1\na\xff", env={"THREADLINE_API": api.url})
    refused(result, 2, r"'a\udcff'" if "-" not in command else "the readings on stdin", "no ")


def test_streams_that_are_closed_are_told(
    api: Api, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch, pytest.raises(typer.Exit) as ended:
        patch.setattr(sys, "stdout", None)
        sinks(api=api.url)
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == "threadline: the output cannot be written: stdout is closed\n"
    with monkeypatch.context() as patch, pytest.raises(typer.Exit) as ended:
        patch.setattr(sys, "stdin", None)
        impact(["-"], api=api.url)
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err == "threadline: there are no readings on stdin\n"


@pytest.mark.parametrize("command", PAGED, ids=" ".join)
def test_pages_are_followed_as_far_as_was_asked_for(
    api: Api, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    whole = [line.split()[0] for line in api.run(*command, "--all").stdout.splitlines()]
    monkeypatch.setattr("threadline.api_client.MOST_AT_ONCE", 4)
    assert [line.split()[0] for line in api.run(*command, "--all").stdout.splitlines()] == whole
    few = api.run(*command, "--limit", "5")
    assert "--limit N or --all" in few.stderr
    assert "--limit N or --all" not in api.run(*command, "--all").stderr
    [of] = {
        name for name in json.loads(api.run(*command, "--json").stdout.splitlines()[0]) if name in ("vertices", "items")
    }
    pages = [json.loads(line)[of] for line in api.run(*command, "--limit", "5", "--json").stdout.splitlines()]
    assert list(map(len, pages)) == [4, 1]


@pytest.mark.parametrize("command", [["sinks", "--all"], ["trace", "center/alerts@1:5"], ["tail", "--since", "start"]])
def test_that_nobody_reads_on_is_no_error(api: Api, command: list[str]) -> None:
    with api.started(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as process:
        out, err = pipes(process)
        out.read(10)
        out.close()
        assert err.read() == b""
        assert process.wait(20) == 0


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_output_that_cannot_be_written_is_told(api: Api, options: list[str]) -> None:
    with (
        Path("/dev/full").open("w") as full,
        api.started("sinks", *options, stdout=full, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.communicate(timeout=20)[1] == (
            "threadline: the output cannot be written: No space left on device\n"
        )
        assert process.returncode == 1


def test_ctrl_c_ends_with_130_and_without_a_word(api: Api) -> None:
    with api.started("tail", "--since", "start", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        pipes(process)[0].readline()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20)[1] == b""
        assert process.returncode == 130


def test_ctrl_c_while_the_command_is_loaded_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loading(ModuleType):
        def __getattr__(self, name: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "threadline.cli", Loading("threadline.cli"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130


# Completion, as the shells ask for it


def completed(line: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", "from threadline.cli import app; app(prog_name='threadline')"],
        env={
            **os.environ, **environment, "_THREADLINE_COMPLETE": "complete_bash",
            "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1),
        },
        capture_output=True, text=True, check=False, timeout=20,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


def test_names_are_completed_from_the_api(api: Api) -> None:
    assert completed("threadline sinks --agent c", THREADLINE_API=api.url) == ["car", "center"]
    assert completed(f"threadline agents --api {api.url} h") == ["hub"]
    assert completed("threadline tail --stream center/", THREADLINE_API=api.url) == [
        "center/alerts",
        "center/far-alerts",
    ]
    assert completed("threadline impact --stream re", THREADLINE_API=api.url) == ["readings", "reports"]


def test_words_are_completed_without_the_api() -> None:
    assert completed("threadline tail --kind so") == ["source", "source-label"]
    assert completed("threadline export l") == ["lineage"]


def test_completion_is_quiet_if_there_is_no_api() -> None:
    assert completed("threadline sinks --agent c", THREADLINE_API=f"127.0.0.1:{free_port()}") == []
    with answering(said(200, "text/html", b"<html>")) as url:
        assert completed("threadline sinks --agent c", THREADLINE_API=url) == []
    assert completed("threadline sinks --agent c", THREADLINE_API="://") == []


def test_the_commands_are_there_before_what_they_need_is_loaded() -> None:
    code = """import sys, threadline.commands.questions
print([each for each in ("httpx", "rich.console", "collector", "pydantic") if each in sys.modules])"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("command", [*COMMANDS, *EXPORTS], ids=" ".join)
def test_every_command_has_help(command: list[str]) -> None:
    names = command[: 2 if command[0] == "export" else 1]
    result = CliRunner().invoke(app, [*names, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0 and "--api" in result.stdout and "--json" in result.stdout
    assert not [each for each in ("<bool>", "<str>", "<int", "list[", "[[", "{") if each in result.stdout]


def test_help_says_what_has_to_be_given() -> None:
    impact_help, trace_help = (CliRunner().invoke(app, [name, "--help"]).stdout for name in ("impact", "trace"))
    assert "impact [OPTIONS] [SOURCE]...\n" in impact_help and "  SOURCE  Readings by their ids" in impact_help
    assert "AGENT/STREAM[@EPOCH]" in impact_help
    assert "trace [OPTIONS] ID\n" in trace_help and "  ID  A tuple, task or data" in trace_help
