"""What goes wrong, as RFC 9457 has it: a problem with a title, a status, and words that say what to do about it.

Every answer that is not a success is one of these, whoever noticed it: a route, the store, or the framework.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from collector.filters import BadFilter
from collector.names import BadName
from collector.store import (
    CursorExpired,
    StoreError,
    StoreMissing,
    StoreUnavailable,
    TooSlow,
)
from collector.store.people import SENSELESS
from collector.store.row_query import BadQuery

_LOG = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"
_MOST_ERRORS = 20
_PARAMETERS = {"greatest": "latest", "from_ms": "from", "to_ms": "to", "after": "cursor", "runs": "run"}
"""What the parts of a question to the store are called here, where that is something else."""
_RETRY_S = 1
_MOST_SHOWN = 100


class FieldProblem(BaseModel):
    """What is wrong with one part of a request."""

    field: str = Field(description="Which parameter, or which place in the body.")
    reason: str


class ProblemDetails(BaseModel):
    """Problem details of RFC 9457."""

    type: str = Field(default="about:blank", description="about:blank: the title says all that the status means.")
    title: str
    status: int
    detail: str = Field(description="What is wrong, and what to do about it.")
    instance: str = Field(description="The path that was asked for.")
    errors: list[FieldProblem] = Field(default_factory=list, description="Of bad requests: which fields, and why.")


class Problem(Exception):
    """Ends a request with this status and these words. `field` says which parameter is to blame."""

    def __init__(self, status: int, detail: str, field: str | None = None, headers: Mapping[str, str] = {}) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = [FieldProblem(field=field, reason=detail)] if field else []
        self.headers = dict(headers)


def bad_field(field: str, reason: str) -> Problem:
    """A parameter that means nothing."""
    return Problem(422, reason, field)


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What OpenAPI says of the problems that a route may answer with."""
    schema = {"$ref": "#/components/schemas/ProblemDetails"}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in sorted({*statuses, 422, 503})
    }


def answer(request: Request, problem: Problem) -> JSONResponse:
    """A problem as an answer."""
    title = HTTPStatus(problem.status).phrase
    body = ProblemDetails(
        title=title,
        status=problem.status,
        detail=problem.detail,
        instance=request.url.path,
        errors=problem.errors,
        type="about:blank",
    )
    return JSONResponse(body.model_dump(), problem.status, headers=problem.headers, media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Have an application answer with problems."""

    def on(kind: type[Exception], problem_of: Callable[[Any], Problem]) -> None:
        async def handle(request: Request, error: Exception) -> JSONResponse:
            return answer(request, problem_of(error))

        app.add_exception_handler(kind, handle)

    on(Problem, lambda error: error)
    on(RequestValidationError, _of_validation)
    on(HTTPException, _of_framework)
    on(BadName, lambda error: Problem(422, str(error), "id"))
    on(BadQuery, _of_query)
    on(BadFilter, lambda error: Problem(422, str(error), "where"))
    on(StoreMissing, lambda error: _later(f"{error}: start `threadline spark`, or wait for it"))
    on(StoreUnavailable, lambda error: _later(str(error)))
    on(CursorExpired, lambda error: Problem(410, f"{error}: begin anew", "cursor"))
    on(TooSlow, lambda error: _later(f"{error}: ask for less, with a shorter time range or a smaller limit"))
    on(StoreError, _of_store)
    on(Exception, _of_defect)


def _later(detail: str) -> Problem:
    return Problem(503, detail, headers={"Retry-After": str(_RETRY_S)})


def _of_framework(error: HTTPException) -> Problem:
    is_about_body = error.status_code in (400, 413)
    field = "body" if is_about_body else None
    detail, headers = str(error.detail), dict(error.headers or {})
    if error.status_code == 404:
        detail = "there is nothing at this path: /docs and /openapi.json describe all that there is"
    if headers.get("Allow") == "GET":
        headers["Allow"] = "GET, HEAD"
    return Problem(error.status_code, detail, field, headers)


def _of_query(error: BadQuery) -> Problem:
    field = _PARAMETERS.get(error.field, error.field)
    return Problem(400 if field == "cursor" else 422, error.reason, field)


def _of_validation(error: RequestValidationError) -> Problem:
    errors = [
        FieldProblem(field=_place(each), reason=str(each["msg"]).removeprefix("Value error, "))
        for each in error.errors()[:_MOST_ERRORS]
    ]
    problem = Problem(422, "; ".join(f"{each.field}: {each.reason}" for each in errors[:5]) or "a bad request")
    problem.errors = errors
    return problem


def _place(error: Mapping[str, Any]) -> str:
    """Where in a request, without saying that it is in its query or body."""
    if error["type"] == "json_invalid":
        return "body"
    parts = [shortened(str(part)) for part in error["loc"] if part not in ("query", "path", "body", "header")]
    return ".".join(parts) or "body"


def shortened(name: str) -> str:
    """A name that a caller has made up, and that need not come back to them in full."""
    return name if len(name) <= _MOST_SHOWN else f"{name[:_MOST_SHOWN]}..."


def _of_store(error: StoreError) -> Problem:
    is_unclear = type(error.__cause__) in SENSELESS  # it may be a defect
    _LOG.error("the store cannot be read error=%s", error, exc_info=error if is_unclear else None)
    return Problem(503, f"the store cannot be read: {error}")


def _of_defect(error: Exception) -> Problem:
    _LOG.error("a defect", exc_info=error)
    return Problem(500, "a defect in Threadline: its log says more")
