"""Requests over HTTP, each until it is answered for.

2xx                                      taken
400, 409, 413, 422 and most other 4xx    about this request: kept aside, and the next one has its turn
no answer, 5xx, 408, 425, 429            later: again, after a pause that grows
401, 403, 404, 405, 407 and 3xx          about all requests (address, rights): the same, and louder

Nobody is trusted to come to an end: a request has a deadline as a whole, of an answer only the beginning is read, and
who wants to stop waits for neither. So a request is a task of an event loop, which can be broken off anywhere; the loop
runs while there is one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from time import monotonic
from typing import NamedTuple

import httpx

from collector.forwarding.errors import ForwardingError
from collector.forwarding.refusals import Refusals
from collector.forwarding.system import Request, shown_url
from protocol.address import is_this_machine

_LOG = logging.getLogger(__name__)
_TIMEOUT = httpx.Timeout(20.0, connect=5.0)  # without any progress
_DEADLINE_S = 60.0  # of a request with its answer
_TEXT_S = 5.0  # of what is said besides the status
_MOST_TEXT_BYTES = 4_096
_GRACE_S = 1.0  # for what is under way when it is time to stop
_LOOK_EVERY_S = 0.1
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 30.0
_TOLD_EVERY_S = 10.0
_LATER = frozenset((HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS))
_MISDIRECTED = frozenset((
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED,
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED,
))  # fmt: skip


@dataclass(slots=True)
class Traffic:
    """What happened to the requests."""

    requests: int = 0
    bytes: int = 0
    refused: int = 0
    retried: int = 0


class Answer(NamedTuple):
    """What the other system says. Of a long text, the beginning."""

    status: int
    text: str
    retry_after: str


class Sender:
    """Sends one request after the other. `wait(seconds)` says whether to stop, and returns as soon as it is so."""

    def __init__(
        self,
        refusals: Refusals,
        wait: Callable[[float], bool],
        *,
        give_up_after_s: float | None = None,
        first_pause_s: float = _FIRST_PAUSE_S,
        deadline_s: float = _DEADLINE_S,
        text_s: float = _TEXT_S,
    ) -> None:
        self.traffic = Traffic()
        self._refusals = refusals
        self._wait = wait
        self._give_up_after_s = give_up_after_s
        self._first_pause_s = first_pause_s
        self._deadline_s = deadline_s
        self._text_s = text_s
        self._stop_at: float | None = None
        self._loop = asyncio.new_event_loop()
        self._clients: dict[bool, httpx.AsyncClient] = {}

    def close(self) -> None:
        for client in self._clients.values():
            self._loop.run_until_complete(client.aclose())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def send(self, request: Request) -> bool:
        """Whether it was answered for: False if it was time to stop before."""
        first_no_at: float | None = None
        told_at = monotonic() - _TOLD_EVERY_S
        pause_s = self._first_pause_s
        while True:
            answer, what = self._attempt(request)
            if answer is None and self._is_over():
                return False
            if answer is not None:
                if httpx.codes.is_success(answer.status):
                    self.traffic.requests += 1
                    self.traffic.bytes += len(request.body)
                    return True
                first_no_at = monotonic() if first_no_at is None else first_no_at
                is_too_long = self._give_up_after_s is not None and monotonic() - first_no_at >= self._give_up_after_s
                if is_too_long or not _is_for_later(answer.status):
                    self._refuse(request, answer)
                    return True
            if monotonic() - told_at >= _TOLD_EVERY_S:
                told_at = monotonic()
                level = logging.ERROR if answer is not None and not _is_passing(answer.status) else logging.WARNING
                _LOG.log(level, "not taken, trying again url=%s why=%s", shown_url(request.url), what)
            self.traffic.retried += 1
            if self._wait(max(pause_s, _asked_pause_s(answer))):
                return False
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _attempt(self, request: Request) -> tuple[Answer | None, str]:
        """The answer, if there is one, and what happened in words."""
        try:
            answer = self._loop.run_until_complete(self._answer(request))
            return answer, f"answered {answer.status}"
        except TimeoutError:
            return None, f"not answered within {self._deadline_s:g} s"
        except httpx.RequestError as error:
            return None, f"{type(error).__name__}: {error}"

    def _is_over(self) -> bool:
        """Whether it is time to stop, and has been for so long that what is under way is not waited for any more."""
        if self._stop_at is None and self._wait(0):
            self._stop_at = monotonic() + _GRACE_S
        return self._stop_at is not None and monotonic() >= self._stop_at

    async def _answer(self, request: Request) -> Answer:
        """TimeoutError if there is none before the deadline, or before the time to stop is over."""
        posting = asyncio.create_task(self._post(request))
        until = monotonic() + self._deadline_s
        try:
            while not posting.done():
                if monotonic() >= until or self._is_over():
                    raise TimeoutError
                await asyncio.wait((posting,), timeout=_LOOK_EVERY_S)
            return posting.result()
        finally:
            posting.cancel()
            await asyncio.wait((posting,))

    async def _post(self, request: Request) -> Answer:
        headers = {"content-type": request.content_type}
        try:
            client = self._client(httpx.URL(request.url).host)
            async with client.stream("POST", request.url, content=request.body, headers=headers) as response:
                text = await self._beginning(response)
                return Answer(response.status_code, text, response.headers.get("retry-after", ""))
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise ForwardingError(f"nothing can be sent to {request.url!r}: {error}") from error

    async def _beginning(self, response: httpx.Response) -> str:
        """What an answer says, as far as it is short and comes soon: the status is the answer, and that is there."""
        found = bytearray()
        try:
            async with asyncio.timeout(self._text_s):
                async for part in response.aiter_raw():
                    found += part
                    if len(found) > _MOST_TEXT_BYTES:
                        break
        except TimeoutError:
            pass
        return found[:_MOST_TEXT_BYTES].decode(errors="replace")

    def _client(self, host: str) -> httpx.AsyncClient:
        """Proxies of the environment are for other machines."""
        is_here = is_this_machine(host)
        if is_here not in self._clients:
            # What is compressed may be long although it is short.
            headers = {"user-agent": "threadline-forward", "accept-encoding": "identity"}
            self._clients[is_here] = httpx.AsyncClient(timeout=_TIMEOUT, headers=headers, trust_env=not is_here)
        return self._clients[is_here]

    def _refuse(self, request: Request, answer: Answer) -> None:
        self._refusals.keep(request, answer.status, answer.text)
        self.traffic.refused += 1
        _LOG.error(
            "refused, kept in %s url=%s status=%d answer=%s",
            self._refusals.path, shown_url(request.url), answer.status, answer.text[:200],
        )  # fmt: skip


def _is_for_later(status: int) -> bool:
    return _is_passing(status) or status in _MISDIRECTED or status < HTTPStatus.BAD_REQUEST


def _is_passing(status: int) -> bool:
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _LATER


def _asked_pause_s(answer: Answer | None) -> float:
    """How long the server wants to be left alone, or until when, within reason."""
    text = answer.retry_after if answer is not None else ""
    if text.isdecimal():
        return min(float(text), _LONGEST_PAUSE_S)
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    left_s = (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(left_s, 0.0), _LONGEST_PAUSE_S)
