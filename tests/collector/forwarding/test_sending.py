"""Requests are sent until they are answered for, or kept aside."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from collector.forwarding.errors import ForwardingError
from collector.forwarding.refusals import Refusals
from collector.forwarding.sending import Sender
from collector.forwarding.system import Request
from tests.collector.forwarding.recording import DROP, LOOPBACK, RecordingServer, UnendingServer
from threadline.lab import free_port

BODY = '{"x": "é"}'.encode()


class Waits:
    """How long the sender wanted to wait, without waiting so long; after `most` waits it is time to stop."""

    def __init__(self, most: int = 1_000) -> None:
        self.seconds: list[float] = []
        self._most = most

    def __call__(self, seconds: float) -> bool:
        if seconds:
            self.seconds.append(seconds)
            time.sleep(0.001)
        return len(self.seconds) >= self._most


@pytest.fixture
def sender_of(tmp_path: Path) -> Iterator[Callable[..., Sender]]:
    made: list[Sender] = []

    def make(wait: Waits | None = None, **options: Any) -> Sender:
        made.append(Sender(Refusals(tmp_path / "position"), wait or Waits(), **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def refused(folder: Path) -> list[Any]:
    path = folder / "position.refused.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_what_is_taken_is_sent_once_and_as_it_is(sender_of: Callable[..., Sender]) -> None:
    with RecordingServer() as server:
        assert sender_of().send(Request(f"{server.url}/a", BODY, "text/x-provenance"))
        (found,) = server.received
    assert (found.path, found.body, found.content_type) == ("/a", BODY, "text/x-provenance")


@pytest.mark.parametrize("status", [DROP, 503, 500, 429, 408, 404, 401, 302])
def test_what_is_about_more_than_this_request_is_tried_again(
    status: int, sender_of: Callable[..., Sender], tmp_path: Path
) -> None:
    waits = Waits()
    sender = sender_of(waits, first_pause_s=1.0)
    with RecordingServer(lambda count, _: status if count < 7 else 200) as server:
        assert sender.send(Request(server.url, BODY))
        assert [each.body for each in server.received] == [BODY] * 8
    assert waits.seconds == [1, 2, 4, 8, 16, 30, 30]
    assert (sender.traffic.requests, sender.traffic.retried, sender.traffic.refused) == (1, 7, 0)
    assert refused(tmp_path) == []


def test_a_server_that_is_not_there_is_waited_for(sender_of: Callable[..., Sender]) -> None:
    sender = sender_of(Waits(most=3))
    assert not sender.send(Request(f"http://127.0.0.1:{free_port()}", BODY)), "nobody has answered for it"
    assert (sender.traffic.requests, sender.traffic.retried) == (0, 3)


@pytest.mark.parametrize("status", [400, 409, 413, 422])
def test_what_is_about_this_request_is_kept_and_the_next_one_has_its_turn(
    status: int, sender_of: Callable[..., Sender], tmp_path: Path
) -> None:
    sender = sender_of()
    with RecordingServer(lambda count, _: status if count == 1 else 200) as server:
        for body in (b"1", BODY, b"3"):
            assert sender.send(Request(server.url, body))
        assert [each.body for each in server.taken] == [b"1", b"3"]
    (kept,) = refused(tmp_path)
    assert (kept["status"], kept["answer"], kept["body"], kept["url"]) == (
        status,
        "this is why",
        BODY.decode(),
        server.url,
    )
    assert (sender.traffic.requests, sender.traffic.retried, sender.traffic.refused) == (2, 0, 1)


def test_bytes_that_are_no_text_are_kept_as_well_and_passwords_are_not(
    sender_of: Callable[..., Sender], tmp_path: Path
) -> None:
    with RecordingServer(lambda count, _: 400) as server:
        sender_of().send(Request(server.url.replace("//", "//me:secret@"), b"\xff\x00"))
    (kept,) = refused(tmp_path)
    assert kept["body_base64"] == "/wA="
    assert "secret" not in json.dumps(kept)


def test_who_does_not_want_to_wait_for_ever_has_errors_kept_aside(
    sender_of: Callable[..., Sender], tmp_path: Path
) -> None:
    with RecordingServer(lambda count, _: 500) as server:
        assert sender_of(give_up_after_s=0.1).send(Request(server.url, BODY))
        assert len(server.received) > 1
    assert [each["status"] for each in refused(tmp_path)] == [500]


def test_a_server_that_asks_for_a_pause_gets_it(sender_of: Callable[..., Sender]) -> None:
    waits = Waits()
    with RecordingServer(lambda count, _: 503 if count < 2 else 200, {"retry-after": "3"}) as server:
        sender_of(waits, first_pause_s=2.0).send(Request(server.url, BODY))
    assert waits.seconds == [3, 4]


@pytest.mark.parametrize(
    ("ahead", "least_s", "most_s"),
    [(timedelta(seconds=8), 6, 8), (timedelta(days=3), 30, 30), (timedelta(days=-3), 2, 2), (None, 2, 2)],
)
def test_it_may_also_say_until_when(
    ahead: timedelta | None, least_s: float, most_s: float, sender_of: Callable[..., Sender]
) -> None:
    waits = Waits()
    until = "Mon, 32 Foo 2026" if ahead is None else format_datetime(datetime.now(UTC) + ahead, usegmt=True)
    with RecordingServer(lambda count, _: 503 if count < 1 else 200, {"retry-after": until}) as server:
        sender_of(waits, first_pause_s=2.0).send(Request(server.url, BODY))
    (waited_s,) = waits.seconds
    assert least_s <= waited_s <= most_s


def test_of_a_long_answer_the_beginning_is_read(sender_of: Callable[..., Sender], tmp_path: Path) -> None:
    refusal = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with UnendingServer(refusal, b"x" * 65_536, every_s=0) as server:
        assert sender_of(text_s=60.0).send(Request(server.url, BODY))
        (kept,) = refused(tmp_path)
        assert kept["answer"] == "x" * 1_000
        assert server.sent_bytes < 64 << 20, "what the system holds between the two"


@pytest.mark.parametrize(("status", "requests", "refusals"), [(b"200 OK", 1, 0), (b"400 Bad Request", 0, 1)])
def test_a_status_counts_though_its_text_does_not_end(
    status: bytes, requests: int, refusals: int, sender_of: Callable[..., Sender], tmp_path: Path
) -> None:
    with UnendingServer(b"HTTP/1.1 " + status + b"\r\n\r\n") as server:
        sender = sender_of(text_s=0.1)
        assert sender.send(Request(server.url, BODY))
        assert (sender.traffic.requests, sender.traffic.refused, server.asked) == (requests, refusals, 1)
    assert all(each["answer"].startswith("x") for each in refused(tmp_path))


def test_an_answer_that_never_comes_has_a_deadline(sender_of: Callable[..., Sender]) -> None:
    """Each byte of it comes in time."""
    with UnendingServer(b"HTTP/1.1 200 OK\r\nx-slow: ") as server:
        sender = sender_of(Waits(most=2), deadline_s=0.2)
        assert not sender.send(Request(server.url, BODY))
        assert (sender.traffic.retried, server.asked) == (2, 2)


def test_proxies_are_for_other_machines(sender_of: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    with RecordingServer() as proxy, RecordingServer() as server:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        sender = sender_of()
        for url in (f"{server.url}/a", "http://elsewhere.invalid/b", server.url.replace(LOOPBACK, "localhost")):
            assert sender.send(Request(url, BODY))
        assert [each.path for each in server.received] == ["/a", "/"]
        assert [each.path for each in proxy.received] == ["http://elsewhere.invalid/b"]


def test_what_cannot_be_kept_is_not_passed_over(sender_of: Callable[..., Sender], tmp_path: Path) -> None:
    (tmp_path / "position.refused.jsonl").mkdir()
    with RecordingServer(lambda count, _: 400) as server, pytest.raises(ForwardingError, match="cannot be kept"):
        sender_of().send(Request(server.url, BODY))


def test_an_address_that_is_none_is_told(sender_of: Callable[..., Sender]) -> None:
    with pytest.raises(ForwardingError, match="nothing can be sent to 'mailto:me'"):
        sender_of().send(Request("mailto:me", BODY))
