"""A route that looks at a request before anything else is done for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar, get_args, get_origin
from zlib import crc32

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

from collector.api.context import Context, context_of
from collector.api.head import is_head
from collector.api.problems import Problem, shortened

MOST_BODY_BYTES = 8 << 20
"""More than any route takes: what comes is kept until all of it is there."""
T = TypeVar("T", bound=Callable[..., Any])
Quick = Callable[[Context, str], Awaitable[Response]]
"""Answers about an id."""
_QUICK: dict[Callable[..., Any], Quick] = {}


def without_query(answer: Quick) -> Callable[[T], T]:
    """Have an endpoint answered in this way if there is no query: then there is nothing for the framework to check, and
    that would take as long as the answer."""

    def noted(endpoint: T) -> T:
        _QUICK[endpoint] = answer
        return endpoint

    return noted


class CheckedRoute(APIRoute):
    """Refuses parameters that it does not have, or has only once: left out silently, they would seem to do something.
    And it answers that nothing has changed to those who have an answer of the store as it is now, and HEAD without a
    body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()
        may_repeat = _parameters(self)
        quick = _QUICK.get(self.endpoint)
        takes_json = self.body_field is not None

        async def checked(request: Request) -> Response:
            if request.scope["query_string"]:
                _check_query(request, may_repeat)
            if request.method == "GET":
                is_conditional = "if-none-match" in request.headers
                if is_conditional and (tag := _known_tag(request)):
                    return Response(status_code=304, headers={"etag": tag})
                if quick is not None and not request.scope["query_string"]:
                    response = await quick(context_of(request), request.path_params["id"])
                else:
                    response = await answer(request)
                if "etag" in response.headers:
                    response.headers["etag"] = tag = _tag(response.headers["etag"], request)
                    if is_conditional and request.headers["if-none-match"] == "*":
                        return Response(status_code=304, headers={"etag": tag})
                if is_head(request.scope):
                    return Response(status_code=response.status_code, headers=response.headers)
                return response
            if takes_json:
                _check_type(request)
            return await answer(Request(request.scope, _bounded(request.receive)))

        return checked


def _parameters(route: APIRoute) -> dict[str, bool]:
    """The parameters of a query, be they given one by one or as a model, and whether each may be repeated."""
    found: dict[str, bool] = {}
    for field in route.dependant.query_params:
        model = field.field_info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            found |= {each.alias or name: _is_list(each.annotation) for name, each in model.model_fields.items()}
        else:
            found[field.alias] = _is_list(model)
    return found


def _is_list(annotation: Any) -> bool:
    return any(get_origin(each) is list for each in (annotation, *get_args(annotation)))


def _check_query(request: Request, may_repeat: Mapping[str, bool]) -> None:
    seen: set[str] = set()
    for given, _ in request.query_params.multi_items():
        if given not in may_repeat:
            there_are = f"there are {', '.join(sorted(may_repeat))}" if may_repeat else "there are none"
            shown = shortened(given)
            raise Problem(422, f"there is no parameter {shown!r} here; {there_are}", shown or "query")
        if given in seen and not may_repeat[given]:
            raise Problem(422, f"{given} is given more than once", given)
        seen.add(given)


def _check_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(
            415, f"content-type is {shortened(kind) or 'missing'}, and application/json is needed", "content-type"
        )


def _bounded(receive: Receive) -> Receive:
    """A body as long as it is not too large."""
    size_bytes = 0

    async def bounded() -> Message:
        nonlocal size_bytes
        message = await receive()
        size_bytes += len(message.get("body", b""))
        if size_bytes > MOST_BODY_BYTES:
            raise HTTPException(413, f"a body has at most {MOST_BODY_BYTES} bytes")  # of the framework: it lets it pass
        return message

    return bounded


def _tag(version: str, request: Request) -> str:
    """What an answer is known by: of which store, and to which question. Another question may have no answer."""
    scope = request.scope
    asked = crc32(scope["query_string"], crc32(scope.get("raw_path") or scope["path"].encode()))
    return f'W/"{version}-{asked:x}"'


def _known_tag(request: Request) -> str | None:
    """The tag of this answer, if the caller has it, of the store as it is now."""
    version = context_of(request).version()
    tag = None if version is None else _tag(version, request)
    known = [each.strip().removeprefix("W/") for each in request.headers["if-none-match"].split(",")]
    return tag if tag is not None and tag.removeprefix("W/") in known else None
