"""The REST API from the side of those who ask: answers, pages and events, and errors that say what to do.

One question at a time, over one connection. What the API answers is handed on as it is, next to its meaning as JSON, so
that a command can print either. Whatever goes wrong is an `ApiError` with a text for the person who has asked.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote

import httpx

from protocol.address import is_this_machine

Parameters = Mapping[str, str | int | bool | Sequence[str] | None]
"""Of a query: what is None is left out, of several values each is given."""

_NONE: Parameters = {}

MOST_AT_ONCE = 1_000
"""Items on a page."""
_CONNECT_S = 5.0
_ANSWER_S = 60.0
_SILENCE_S = 45.0  # of a stream: as a rule the API says every 15 s that there is nothing new
_RETRY_S = 1.0
_LISTENING_S = 0.05
_PROBLEM = "application/problem+json"


class ApiError(Exception):
    """There is no answer; the text says why, and what to do."""


class BadAddress(ApiError):
    """What was given is no address of an API."""


class NoApi(ApiError):
    """Nobody answers there, or somebody else."""


class FieldProblem(NamedTuple):
    """What the API says of one part of a question."""

    field: str
    reason: str


class Refused(ApiError):
    """The API has answered with a problem (RFC 9457)."""

    def __init__(self, status: int, detail: str, fields: Sequence[FieldProblem] = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.fields = tuple(fields)


class Answer(NamedTuple):
    """One document: as it came, and what it says."""

    text: str
    body: dict[str, Any]


class Event(NamedTuple):
    """Something that was added to the graph. The id is its place in the change feed."""

    id: str
    kind: str
    data: Any


class Client:
    """Asks one API."""

    def __init__(self, url: str, *, connect_s: float = _CONNECT_S, answer_s: float = _ANSWER_S) -> None:
        self.url = _address(url)
        self._answer_s = answer_s
        self._connect_s = connect_s
        self._http = httpx.Client(
            base_url=self.url,
            timeout=httpx.Timeout(answer_s, connect=connect_s),
            headers={"user-agent": "threadline", "accept": "application/json"},
            # Proxies of the environment are for other machines, and certificates take time to load.
            trust_env=not is_this_machine(self.url.host),
            verify=self.url.scheme == "https",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._http.close()

    def await_start(self, patience_s: float) -> None:
        """Wait so long at the most for an API of this machine that does not listen yet: it may have been started in
        the line before."""
        if not is_this_machine(self.url.host):
            return
        address = self.url.host, self.url.port or {"http": 80, "https": 443}[self.url.scheme]
        end_s = time.monotonic() + patience_s
        while time.monotonic() < end_s:
            try:
                socket.create_connection(address, self._connect_s).close()
                return
            except ConnectionRefusedError:
                time.sleep(_LISTENING_S)
            except OSError:
                return

    def ask(self, path: str, parameters: Parameters = _NONE, *, posted: Any = None, has: str) -> Answer:
        """The answer of an endpoint of `/v1`, a document that has such a field."""
        method = "GET" if posted is None else "POST"
        try:
            with self._http.stream(method, f"/v1/{path}", params=_given(parameters), json=posted) as response:
                self._read(response)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error
        except UnicodeEncodeError as error:
            raise _no_text(error) from None
        self._check(response)
        return self._answer(response, has)

    def pages(
        self,
        path: str,
        parameters: Parameters = _NONE,
        *,
        of: str,
        limit: int | None = None,
        posted: Any = None,
        read: Callable[[Answer], Answer] = lambda page: page,
    ) -> Iterator[Answer]:
        """Pages of a list, one after the other, until there are so many items of this name, or no more. What counts of
        a page is what `read` leaves."""
        left = limit
        cursor = None
        while True:
            size = MOST_AT_ONCE if left is None else min(left, MOST_AT_ONCE)
            page = read(self.ask(path, {**parameters, "limit": size, "cursor": cursor}, posted=posted, has=of))
            yield page
            if left is not None:
                left -= len(page.body[of])
            cursor = page.body.get("next")
            if cursor is None or (left is not None and left <= 0):
                return

    def follow(
        self,
        parameters: Parameters,
        told: Callable[[str], None],
        pause: Callable[[float], None] = time.sleep,
    ) -> Generator[Event]:
        """What is added to the graph, each event once and in order, for as long as anybody wants more.

        A connection that is lost is made again, and the events go on behind the last one that came; `told` gets a line
        about it. Only if there was no connection at all, or the API refuses, that is an error.
        """
        last: str | None = None
        retry_s = _RETRY_S
        is_lost = False
        while True:
            try:
                with self._stream(parameters, last) as response:
                    if is_lost:
                        told("the connection is back: events go on where they had stopped")
                        is_lost = False
                    why = "the API has ended it"
                    for message in read_events(response.iter_bytes()):
                        retry_s = message.retry_s or retry_s
                        if message.event == "trouble":
                            why = f"the API says: {_text_of(message.data)}"
                            break
                        last = message.id
                        if message.event != "place":
                            yield Event(message.id, message.event, self._event_data(message))
            except httpx.RequestError as error:
                if last is None:
                    raise self._unreachable(error) from error
                why = _reason(error)
            except UnicodeEncodeError as error:
                raise _no_text(error) from None
            except NoApi as error:  # a proxy may speak for it meanwhile
                if last is None:
                    raise
                why = str(error)
            except Refused as refused:
                if last is None or refused.status < 500:
                    raise
                why = refused.detail
            if not is_lost:
                told(f"the connection to {self.url} is lost ({why}): trying again every {retry_s:g} s")
                is_lost = True
            pause(retry_s)

    @contextmanager
    def _stream(self, parameters: Parameters, last: str | None) -> Iterator[httpx.Response]:
        with self._http.stream(
            "GET",
            "/v1/graph/stream",
            params=_given(parameters),
            headers={"accept": "text/event-stream"} | ({} if last is None else {"last-event-id": last}),
            timeout=httpx.Timeout(_SILENCE_S, connect=self._connect_s),
        ) as response:
            if not response.is_success:
                response.read()
            self._check(response)
            if _media_type(response) != "text/event-stream":
                raise self._somebody_else(response)
            yield response

    def _read(self, response: httpx.Response) -> None:
        try:
            response.read()
        except (httpx.NetworkError, httpx.ProtocolError) as error:
            raise NoApi(f"the answer of the API at {self.url} broke off ({_reason(error)}): ask again") from error

    def _check(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        if _media_type(response) != _PROBLEM:
            raise self._somebody_else(response)
        try:
            told = response.json()
            fields = [FieldProblem(str(each["field"]), str(each["reason"])) for each in told.get("errors", [])]
            raise Refused(response.status_code, str(told["detail"]), fields)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._somebody_else(response) from None

    def _answer(self, response: httpx.Response, has: str) -> Answer:
        if _media_type(response) != "application/json":
            raise self._somebody_else(response)
        try:
            body = response.json()
        except ValueError:
            raise self._somebody_else(response) from None
        if not isinstance(body, dict) or has not in body:
            raise self._somebody_else(response)
        return Answer(response.text, body)

    def _event_data(self, message: Message) -> Any:
        try:
            return json.loads(message.data)
        except ValueError:
            raise ApiError(f"{self.url} has sent an event that cannot be read: {message.data[:80]!r}") from None

    def _somebody_else(self, response: httpx.Response) -> NoApi:
        said = f"{response.status_code} {_media_type(response) or 'of no type'}"
        return NoApi(
            f"{self.url} answers, but not as Threadline's API does ({said}): say where the API is with --api or "
            "THREADLINE_API"
        )

    def _unreachable(self, error: Exception) -> ApiError:
        if isinstance(error, httpx.InvalidURL):
            return ApiError(f"this cannot be asked: {str(error).lower()}")
        if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
            return NoApi(
                f"the API at {self.url} has not answered within {self._answer_s:g} s: ask for less, with a shorter "
                "time range or a smaller limit"
            )
        reason = f"no answer within {self._connect_s:g} s" if isinstance(error, httpx.ConnectTimeout) else None
        return NoApi(
            f"no API at {self.url} ({reason or _reason(error)}): start `threadline serve`, or say where it is with "
            "--api or THREADLINE_API"
        )


class Message(NamedTuple):
    """A server-sent event as it came. The id is that of the last one that had an id."""

    id: str
    event: str
    data: str
    retry_s: float | None


def read_events(chunks: Iterable[bytes]) -> Iterator[Message]:
    """Server-sent events, however they were cut on their way. One that does not end is none."""
    last_id, event, retry_s = "", "", None
    data: list[str] = []
    for line in _lines(chunks):
        if not line:
            if data:
                yield Message(last_id, event or "message", "\n".join(data), retry_s)
            event, data = "", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            last_id = value
        elif name == "event":
            event = value
        elif name == "data":
            data.append(value)
        elif name == "retry" and value.isascii() and value.isdigit():
            retry_s = int(value) / 1000


def path_of(*parts: str) -> str:
    """Parts of a path, with all that has a meaning of its own in addresses written so that it has none."""
    try:
        return "/".join(quote(part, safe="/@:~") for part in parts)
    except UnicodeEncodeError as error:
        raise _no_text(error) from None


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Lines as server-sent events have them: texts may hold other characters that end lines elsewhere."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode(errors="replace")


def _address(text: str) -> httpx.URL:
    """The address of an API without a path behind it that all its endpoints have."""
    whole = text if "://" in text else f"http://{text}"
    try:
        found = httpx.URL(whole.rstrip("/").removesuffix("/v1"))
    except (httpx.InvalidURL, UnicodeEncodeError) as error:
        raise BadAddress(f"--api {text!r} is no address: {str(error).lower()}") from None
    if found.scheme not in ("http", "https") or not found.host:
        raise BadAddress(f"--api {text!r} is no address of an API: write http://HOST:PORT")
    return found


def _given(parameters: Parameters) -> list[tuple[str, str | int | float | bool | None]]:
    """The parameters that were given, one by one."""
    found: list[tuple[str, str | int | float | bool | None]] = []
    for name, value in parameters.items():
        if isinstance(value, (str, int)):
            found.append((name, value))
        elif value is not None:
            found += [(name, each) for each in value]
    return found


def _no_text(error: UnicodeEncodeError) -> ApiError:
    """Bytes that somebody has given, and that are no text: up to them, in a document from the last quote on."""
    text = error.object[: error.end].rpartition('"')[2]
    return ApiError(f"this cannot be asked: {text!r} is no text in UTF-8")


def _media_type(response: httpx.Response) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()


def _reason(error: BaseException) -> str:
    """What the system says of a connection that failed, or the library."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
        cause = cause.__cause__ or cause.__context__
    return str(error).lower() or type(error).__name__


def _text_of(data: str) -> str:
    try:
        return str(json.loads(data))
    except ValueError:
        return data
