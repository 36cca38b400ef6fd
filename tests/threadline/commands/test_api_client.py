"""The client, against servers that behave as ours does and against those that do not."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.threadline.commands.served import Api
from tests.threadline.commands.strangers import answering, said
from threadline.api_client import ApiError, BadAddress, Client, Message, NoApi, Refused, path_of, read_events
from threadline.lab import free_port

PROBLEM = {"detail": "no", "status": 503, "title": "t", "instance": "/", "errors": []}


@pytest.mark.parametrize(
    ("status", "media_type", "body"),
    [
        (200, "text/html", b"<html>"),
        (404, "text/html", b"<html>"),
        (502, "text/plain", b"bad gateway"),
        (302, "text/html", b""),
        (200, "application/json", b"{"),
        (200, "application/json", b"[1]"),
        (200, "application/json", b'{"other": 1}'),
        (404, "application/json", b'{"detail": "Not Found"}'),
        (422, "application/problem+json", b"[]"),
        (422, "application/problem+json", b'{"detail": "no", "errors": [1]}'),
    ],
)
def test_somebody_else_who_answers_is_told_from_the_api(status: int, media_type: str, body: bytes) -> None:
    with answering(said(status, media_type, body)) as url, Client(url) as client:
        with pytest.raises(NoApi, match=rf"{url} answers, but not as Threadline's API does \({status} ") as found:
            client.ask("sinks", has="vertices")
        assert "--api" in str(found.value)


def test_who_does_not_speak_http_is_no_api() -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"220 smtp.example ESMTP\r\n")

    with answering(answer) as url, Client(url) as client, pytest.raises(NoApi, match=r"no API at .*start `threadline"):
        client.ask("sinks", has="vertices")


@pytest.mark.parametrize("header", [("content-length", "100"), ("transfer-encoding", "chunked")])
def test_an_answer_that_breaks_off_is_told(header: tuple[str, str]) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("content-type", "application/json")
        request.send_header(*header)
        request.end_headers()
        request.wfile.write(b"20\r\n{")

    broke_off = r"the answer of the API at \S+ broke off \(.*\): ask again"
    with answering(answer) as url, Client(url) as client, pytest.raises(NoApi, match=broke_off):
        client.ask("sinks", has="vertices")


def test_an_answer_that_does_not_come_is_given_up() -> None:
    has_ended = threading.Event()

    def answer(_: BaseHTTPRequestHandler) -> None:
        has_ended.wait(20)

    with answering(answer) as url, Client(url, answer_s=0.1) as client:
        with pytest.raises(NoApi, match=r"not answered within 0.1 s: ask for less"):
            client.ask("sinks", has="vertices")
        has_ended.set()


@pytest.mark.parametrize(
    "url",
    [
        *("", "http://", "ftp://127.0.0.1", "http://127.0.0.1:port", "http://[::1", "http://a\x00b", "http://a/\udcff"),
        "://",
    ],
)
def test_what_is_no_address_is_told(url: str) -> None:
    with pytest.raises(BadAddress, match=r"--api .* is no address"):
        Client(url)


@pytest.mark.parametrize("form", ["{0}", "http://{0}", "http://{0}/", "http://{0}/v1", "http://{0}/v1/"])
def test_an_address_may_be_written_in_several_ways(api: Api, form: str) -> None:
    with Client(form.format(f"127.0.0.1:{api.port}")) as client:
        assert client.ask("agents", has="items").body["items"]


def test_proxies_are_not_asked_for_this_machine(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    with Client(api.url) as client:
        assert client.ask("agents", has="items").body["items"]


def test_what_the_api_refuses_says_which_field(api: Api) -> None:
    with Client(api.url) as client:
        with pytest.raises(Refused) as found:
            client.ask("sinks", {"from": "yesterday", "where": ["a", "b=1"]}, has="vertices")
        assert found.value.status == 422
        assert {field.partition(".")[0] for field, _ in found.value.fields} == {"from", "where"}
        with pytest.raises(Refused, match="there is no agent") as found:
            client.ask(path_of("agents", "nobody"), has="starts")
        assert found.value.status == 404


def test_an_answer_is_handed_on_as_it_is(api: Api) -> None:
    with Client(api.url) as client:
        answer = client.ask("agents", has="items")
        assert json.loads(answer.text) == answer.body


@pytest.mark.parametrize(("limit", "size"), [(None, 4), (1, 4), (4, 4), (10, 4), (10, 1_000), (10_000, 7)])
def test_pages_have_all_items_and_no_more_than_were_asked_for(
    api: Api, monkeypatch: pytest.MonkeyPatch, limit: int | None, size: int
) -> None:
    with Client(api.url) as client:
        everything = client.ask("sinks", {"limit": 1_000}, has="vertices").body["vertices"]
        monkeypatch.setattr("threadline.api_client.MOST_AT_ONCE", size)
        pages = [page.body["vertices"] for page in client.pages("sinks", of="vertices", limit=limit)]
    assert [each for page in pages for each in page] == everything[:limit]
    assert max(map(len, pages)) <= size


@pytest.mark.parametrize("id", ["prankster/al erts?#%2F@1:0", "data:training/in-1"])
def test_ids_are_found_whatever_characters_they_have(api: Api, id: str) -> None:
    with Client(api.url) as client:
        assert client.ask(path_of("vertices", id), has="id").body["id"] == id


def test_a_question_that_is_too_long_is_told(api: Api) -> None:
    with Client(api.url) as client, pytest.raises(ApiError, match="cannot be asked"):
        client.ask("sinks", {"where": ["a" * 70_000]}, has="vertices")


# Events

_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=5)
_WORD = st.text("abc-12", min_size=1, max_size=5)


@given(st.lists(st.tuples(_WORD, _WORD, _TEXT)), st.data())
def test_events_are_read_however_they_were_cut(events: list[tuple[str, str, str]], data: st.DataObject) -> None:
    sent = "retry: 250\n\n: a comment\n\n"
    sent += "".join(f"id: {id}\nevent: {event}\ndata: {text}\n\n" for id, event, text in events)
    cut = sent.encode() + b"id: 99\nevent: sink\ndata: of one that does not end\n"
    places = sorted(data.draw(st.sets(st.integers(0, len(cut)), max_size=8)))
    chunks = [cut[begin:end] for begin, end in zip([0, *places], [*places, len(cut)], strict=True)]
    assert list(read_events(chunks)) == [Message(id, event, text, 0.25) for id, event, text in events]


def test_events_may_have_several_lines_of_any_kind() -> None:
    sent = b"event:sink\r\ndata:a\r\ndata:  b\r\n\r\nid: 7\ndata\n\n"
    assert list(read_events([sent])) == [Message("", "sink", "a\n b", None), Message("7", "message", "", None)]


class Feed:
    """A server of events that breaks off after each list of them, and what it was asked for."""

    def __init__(self, *parts: list[str] | tuple[int, dict[str, Any] | None]) -> None:
        self._parts = iter(parts)
        self.asked: list[str | None] = []

    def __call__(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append(request.headers.get("last-event-id"))
        part = next(self._parts)
        if isinstance(part, tuple):
            media_type = "text/html" if part[1] is None else "application/problem+json"
            said(part[0], media_type, json.dumps(part[1]).encode())(request)
            return
        request.send_response(200)
        request.send_header("content-type", "text/event-stream")
        request.end_headers()
        request.wfile.write("".join(part).encode())


def event(id: str, kind: str = "sink", data: str = "{}") -> str:
    return f"retry: 1\nid: {id}\nevent: {kind}\ndata: {data}\n\n"


def test_a_stream_that_breaks_off_goes_on_behind_its_last_event() -> None:
    feed = Feed(
        [event("0-0", "place"), event("1-1"), event("1-2")[:-1]],
        (503, PROBLEM),
        (502, None),
        [event("1-1", "place"), event("1-2"), event("4-0", "place"), event("5-0", "trouble", '"the disk is gone"')],
        [event("4-0", "place"), event("5-1")],
    )
    told: list[str] = []
    with answering(feed) as url, Client(url) as client:
        events = list(islice(client.follow({"since": "start"}, told.append), 3))
    assert [each.id for each in events] == ["1-1", "1-2", "5-1"]
    assert feed.asked == [None, "1-1", "1-1", "1-1", "4-0"]
    assert [("is lost" in line, "is back" in line) for line in told] == [(True, False), (False, True)] * 2
    assert "the disk is gone" in told[2]


def test_events_that_are_gone_end_a_stream() -> None:
    feed = Feed([event("0-0", "place"), event("1-1")], (410, {**PROBLEM, "detail": "begin anew"}))
    with answering(feed) as url, Client(url) as client:
        events = client.follow({"since": "start"}, lambda _: None)
        assert next(events).id == "1-1"
        with pytest.raises(Refused, match="begin anew"):
            next(events)


def test_a_stream_that_never_was_is_an_error() -> None:
    with Client(f"127.0.0.1:{free_port()}") as client, pytest.raises(NoApi, match="connection refused"):
        next(client.follow({}, lambda _: None))
    for feed in (Feed((503, PROBLEM)), said(200, "application/json", b"{}"), Feed([event("1-1", data="{")])):
        with answering(feed) as url, Client(url) as client, pytest.raises(ApiError):
            next(client.follow({}, lambda _: None))
