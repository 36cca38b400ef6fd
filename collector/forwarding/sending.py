"""Requests over HTTP, each until it is answered for.

2xx                                      taken
400, 409, 413, 422 and most other 4xx    about this request: kept aside, and the next one has its turn
no answer, 5xx, 408, 425, 429            later: again, after a pause that grows
401, 403, 404, 405, 407 and 3xx          about all requests (address, rights): the same, and louder
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from time import monotonic

import httpx

from collector.forwarding.errors import ForwardingError
from collector.forwarding.refusals import Refusals
from collector.forwarding.system import Request, shown_url

_LOG = logging.getLogger(__name__)
_TIMEOUT = httpx.Timeout(20.0, connect=5.0)
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


class Sender:
    """Sends one request after the other. `wait(seconds)` says whether to stop."""

    def __init__(
        self,
        refusals: Refusals,
        wait: Callable[[float], bool],
        *,
        give_up_after_s: float | None = None,
        first_pause_s: float = _FIRST_PAUSE_S,
    ) -> None:
        self.traffic = Traffic()
        self._refusals = refusals
        self._wait = wait
        self._give_up_after_s = give_up_after_s
        self._first_pause_s = first_pause_s
        self._client = httpx.Client(timeout=_TIMEOUT, headers={"user-agent": "threadline-forward"})

    def close(self) -> None:
        self._client.close()

    def send(self, request: Request) -> bool:
        """Whether it was answered for: False if it was time to stop before."""
        first_no_at: float | None = None
        told_at = monotonic() - _TOLD_EVERY_S
        pause_s = self._first_pause_s
        while True:
            try:
                answer = self._post(request)
                what = f"answered {answer.status_code}"
            except httpx.RequestError as error:
                answer, what = None, f"{type(error).__name__}: {error}"
            if answer is not None:
                if answer.is_success:
                    self.traffic.requests += 1
                    self.traffic.bytes += len(request.body)
                    return True
                first_no_at = monotonic() if first_no_at is None else first_no_at
                is_too_long = self._give_up_after_s is not None and monotonic() - first_no_at >= self._give_up_after_s
                if is_too_long or not _is_for_later(answer.status_code):
                    self._refuse(request, answer)
                    return True
            if monotonic() - told_at >= _TOLD_EVERY_S:
                told_at = monotonic()
                level = logging.ERROR if answer is not None and not _is_passing(answer.status_code) else logging.WARNING
                _LOG.log(level, "not taken, trying again url=%s why=%s", shown_url(request.url), what)
            self.traffic.retried += 1
            if self._wait(max(pause_s, _asked_pause_s(answer))):
                return False
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _post(self, request: Request) -> httpx.Response:
        try:
            return self._client.post(request.url, content=request.body, headers={"content-type": request.content_type})
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise ForwardingError(f"nothing can be sent to {request.url!r}: {error}") from error

    def _refuse(self, request: Request, answer: httpx.Response) -> None:
        self._refusals.keep(request, answer.status_code, answer.text)
        self.traffic.refused += 1
        _LOG.error(
            "refused, kept in %s url=%s status=%d answer=%s",
            self._refusals.path, shown_url(request.url), answer.status_code, answer.text[:200],
        )  # fmt: skip


def _is_for_later(status: int) -> bool:
    return _is_passing(status) or status in _MISDIRECTED or status < HTTPStatus.BAD_REQUEST


def _is_passing(status: int) -> bool:
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _LATER


def _asked_pause_s(answer: httpx.Response | None) -> float:
    """How long the server wants to be left alone, within reason."""
    text = answer.headers.get("retry-after", "") if answer is not None else ""
    return min(float(text), _LONGEST_PAUSE_S) if text.isdecimal() else 0.0
