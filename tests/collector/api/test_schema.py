"""The API keeps to its own description, whatever it is asked: no answer that is not described, and none that says that
the server is at fault.

Questions are made by schemathesis, from the description alone: such as fit it, and such as do not. Ids that are in the
store are mixed into them, so that many of them have an answer.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from pydantic import TypeAdapter
from schemathesis import Case, CheckFunction, GenerationMode
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation, BaseSchema
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_schema_conformance,
)

from collector.api.app import Settings, create_app
from collector.api.examples import ANSWERS, PARAMETERS
from collector.api.problems import ProblemDetails
from collector.api.routes import captured, changes, fleet, impact, ingest, paths, sinks, statistics, troubles, vertices
from collector.api.routes import operations as operations_routes
from collector.api.rows import Readiness
from collector.ingest import read_json
from tests.collector.api.rich_store import KNOWN, fill
from tests.collector.store.graphs import QuickWriter

Operation = APIOperation[Any, Any, Any, Any]
Question = Case[Operation]
A_FEW = settings(max_examples=2, suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink])
MANY = settings(A_FEW, max_examples=1_000, derandomize=False)
ROUTES = (vertices, sinks, paths, impact, changes, captured, fleet, troubles, statistics, ingest)
TAGS = ("graph", "captured", "fleet", "troubles", "statistics", "ingest", "operations")
IDS = [*KNOWN, "car/readings@1:99999", "task:pi-1@1:99", "data:training/out-0"]
PATTERNS = ["~car/.*", "~center/.*", "~.*"]
FIELDS = ["name", "-begun_ms", "elapsed_ms", "used.rate", "-generated.loss", "workflow.model", "attributes.loss"]
KNOWN_VALUES: dict[str, list[Any]] = {
    "id": IDS,
    "source": IDS,
    "sources": IDS,
    "agent": ["car", "center", "depot", "kiosk", "pi-1"],
    "name": ["car", "pi-1", "step-1", "out-1", "training"],
    "epoch": [1, 2],
    "stream": ["readings", "car/readings", "center/alerts@1", "late", "entries"],
    "from": [0, 1_000, "1970-01-01T00:00:01Z", *IDS, *PATTERNS],
    "to": [2_000, 10_000, "2100-01-01T00:00:00Z", *IDS, *PATTERNS],
    "where": ["$>2000", "status=failed", "loss<0.2", "name~^out", "error?", "used.rate=0.1"],
    "via": ["hub/.*"],
    "run": [KNOWN.workflow, KNOWN.other_workflow, "training"],
    "workflow": [KNOWN.workflow],
    "workflow_name": ["training"],
    "task": [KNOWN.task],
    "transformation": ["train"],
    "group_by": FIELDS,
    "order_by": FIELDS,
    "select": FIELDS,
    "latest": ["begun_ms", "used.rate"],
    "since": ["start", "end", "1-1"],
}
QUESTIONS: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "/v1/vertices/{id}": [({"id": id}, {}) for id in KNOWN],
    "/v1/vertices/{id}/backward": [({"id": id}, {"limit": 2, "payload": True}) for id in (KNOWN.result, KNOWN.task)],
    "/v1/vertices/{id}/forward": [({"id": id}, {"payload": True}) for id in (KNOWN.reading, KNOWN.sent, KNOWN.data)],
    "/v1/vertices/{id}/lineage": [
        ({"id": id}, {"levels": 3, "direction": "both", "payload": True})
        for id in (KNOWN.result, KNOWN.incomplete, KNOWN.late_result, KNOWN.data)
    ],
    "/v1/sinks": [({}, {}), ({}, {"state": "incomplete"}), ({}, {"where": ["$>2000"], "limit": 3})],
    "/v1/paths": [
        ({}, {"from": "~car/.*", "to": "~center/.*", "via": "hub/.*"}),
        ({}, {"from": KNOWN.reading, "to": KNOWN.result, "payload": True}),
        ({}, {"from": "~.*", "to": KNOWN.data}),
    ],
    "/v1/impact": [
        ({}, {"source": [KNOWN.reading, KNOWN.late_reading], "edges": True}),
        ({}, {"stream": "car/readings", "from": 0, "to": 500, "limit": 2}),
    ],
    "/v1/tasks": [
        ({}, {"group_by": "agent", "latest": "begun_ms", "select": "used.rate,generated.loss"}),
        ({}, {"workflow": KNOWN.workflow, "order_by": "-generated.loss", "limit": 1}),
    ],
    "/v1/data": [({}, {"role": "generated", "where": ["loss<0.2"]}), ({}, {"task": KNOWN.task})],
    "/v1/workflows": [({}, {}), ({}, {"status": "running"})],
    "/v1/workflows/compare": [({}, {"run": ["training"]})],
    "/v1/agents/{name}": [({"name": name}, {}) for name in ("car", "pi-1", "kiosk")],
    "/v1/plans/{agent}/{epoch}": [
        ({"agent": "car", "epoch": 1}, {"format": format}) for format in ("json", "svg", "dot", "text")
    ],
    "/v1/graph/stream": [({}, {"since": "start", "kind": ["sink", "edge"]})],
}
"""What has an answer; of what is not here, the question without parameters has one."""
LEFT_OUT: dict[str, list[CheckFunction]] = {
    # The framework has a route for each of its methods, and names those of one of them only.
    "/v1/impact": [allow_header_conformance],
    # The description is that of the whole text; OpenAPI 3.1 has no words for one event of it.
    "/v1/graph/stream": [response_schema_conformance],
}
"""Checks that make no sense. Besides: that a text fits its description (`positive_data_acceptance`) does not mean that
there is such an id, that it is a regular expression, or a cursor."""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    path = tmp_path_factory.mktemp("schema") / "graph.db"
    with QuickWriter(path) as writer:
        fill(writer)
    made = create_app(Settings(path))
    made.state.context.watcher.stop()  # so streams of events end when they have begun
    return made


@pytest.fixture(scope="module")
def described(app: FastAPI) -> BaseSchema:
    """The description."""
    return _loaded(app, copy.deepcopy(app.openapi()))


@pytest.fixture(scope="module")
def offering(app: FastAPI) -> BaseSchema:
    """The description with values that have an answer."""
    told = copy.deepcopy(app.openapi())
    for operation in (each for methods in told["paths"].values() for each in methods.values()):
        for parameter in operation.get("parameters", ()):
            if parameter["name"] in KNOWN_VALUES:
                parameter["schema"] = _with(parameter["schema"], KNOWN_VALUES[parameter["name"]])
    body = told["components"]["schemas"]["Readings"]["properties"]
    body["sources"] = _with(body["sources"], KNOWN_VALUES["sources"])
    return _loaded(app, told)


def _loaded(app: FastAPI, told: dict[str, Any]) -> BaseSchema:
    told["paths"]["/v1/ingest"]["post"]["requestBody"]["content"].pop("application/msgpack")  # it cannot make any
    made = schemathesis.openapi.from_dict(told)
    made.app = app
    return made


def _with(schema: Mapping[str, Any], values: list[Any]) -> dict[str, Any]:
    """A schema that says which values are worth a try; of a list, which items are."""
    if schema.get("type") == "array":
        return {**schema, "items": _with(schema["items"], values)}
    parts = schema.get("anyOf", [])
    if any(part.get("type") == "array" for part in parts):
        return {**schema, "anyOf": [_with(part, values) if "items" in part else part for part in parts]}
    return {"anyOf": [{"enum": values}, {"enum": values}, schema]}


def operations(described: BaseSchema, tag: str | None = None) -> Iterator[Operation]:
    for each in described.get_all_operations():
        assert isinstance(each, Ok), each
        operation = each.ok()
        if tag is None or tag in (operation.tags or ()):
            yield operation


def check(case: Question, *left_out: CheckFunction) -> int:
    """Ask, and look whether the answer is as described; returns its status."""
    path = case.operation.path
    if path == "/v1/ingest":
        response = case.call()
        assert response.status_code in (405, 415, 422, 503), "there is no broker to hand it to"
        assert response.headers["content-type"] == ["application/problem+json"]
        return response.status_code
    response = case.call()
    case.validate_response(response, excluded_checks=[positive_data_acceptance, *LEFT_OUT.get(path, []), *left_out])
    if response.status_code >= 400 and path != "/readyz":
        told = response.json()
        assert told["status"] == response.status_code and told["detail"]
    return response.status_code


# The description itself


def test_the_description_is_one_of_openapi_and_says_something_of_everything(app: FastAPI) -> None:
    told = app.openapi()
    schemathesis.openapi.from_dict(copy.deepcopy(told)).validate()
    assert told["openapi"].startswith("3.1")
    tags = set()
    for path, methods in told["paths"].items():
        for method, operation in methods.items():
            place = f"{method} {path}"
            assert operation["summary"] and len(operation["description"]) > 20, place
            tags |= set(operation["tags"])
            for parameter in operation.get("parameters", ()):
                assert parameter.get("description"), f"{place}: {parameter['name']}"
            for status, response in operation["responses"].items():
                if status >= "4" and (path, status) != ("/readyz", "503"):
                    assert list(response["content"]) == ["application/problem+json"], (place, status)
            assert "422" in operation["responses"], place
    assert tags == set(TAGS)


def test_examples_are_such_as_the_description_asks_for(app: FastAPI) -> None:
    told = app.openapi()
    names = ("parameters", "requestBody")
    examples = 0
    for operation in (each for methods in told["paths"].values() for each in methods.values()):
        assert any(name in operation for name in names) or not operation.get("parameters")
        for parameter in operation.get("parameters", ()):
            for example in parameter["schema"].get("examples", ()):
                # What may be repeated is shown once.
                items = parameter["schema"].get("anyOf", [parameter["schema"]])
                value = [example] if any(each.get("type") == "array" for each in items) else example
                _validator(told, parameter["schema"]).validate(value)
                examples += 1
    for schema in told["components"]["schemas"].values():
        for example in schema.get("examples", ()):
            _validator(told, schema).validate(example)
            examples += 1
    assert examples > 10


def test_every_operation_shows_an_answer_that_is_one(app: FastAPI) -> None:
    told = app.openapi()
    models = {
        f"{method} {prefix}{route.path_format}": route.response_model
        for prefix, modules in (("/v1", ROUTES), ("", (operations_routes,)))
        for module in modules
        for route in module.router.routes
        for method in route.methods
        if route.include_in_schema
    }
    assert ANSWERS.keys() == models.keys() - {"GET /v1/graph/stream"}
    for name, model in models.items():
        method, path = name.split()
        content = told["paths"][path][method.lower()]["responses"]["200"]["content"]
        examples = [each["example"] for each in content.values() if "example" in each]
        assert len(examples) == 1, name
        if model is None:
            assert isinstance(examples[0], str), name
        else:
            read = TypeAdapter(model).validate_python(examples[0])
            assert read.model_dump(mode="json") == examples[0], name
    not_ready = told["paths"]["/readyz"]["get"]["responses"]["503"]["content"]["application/json"]["example"]
    assert Readiness.model_validate(not_ready).model_dump() == not_ready


def test_every_problem_shows_one(app: FastAPI) -> None:
    for path, methods in app.openapi()["paths"].items():
        for operation in methods.values():
            for status, response in operation["responses"].items():
                if status >= "4" and (path, status) != ("/readyz", "503"):
                    example = response["content"]["application/problem+json"]["example"]
                    assert ProblemDetails.model_validate(example).model_dump() == example
                    assert example["status"] == int(status)


def test_every_parameter_that_does_not_speak_for_itself_has_an_example(app: FastAPI) -> None:
    for path, methods in app.openapi()["paths"].items():
        given = {each["name"]: each["schema"] for one in methods.values() for each in one.get("parameters", ())}
        assert PARAMETERS.get(path, {}).keys() <= given.keys()
        for name, schema in given.items():
            kinds = [schema, *schema.get("anyOf", ())]
            is_plain = schema.get("default") is not None or any("enum" in each for each in kinds) or name == "cursor"
            assert is_plain or schema.get("examples"), f"{path}: {name}"


def test_the_document_that_is_shown_would_be_ingested(app: FastAPI) -> None:
    content = app.openapi()["paths"]["/v1/ingest"]["post"]["requestBody"]["content"]
    assert read_json(json.dumps(content["application/json"]["example"]).encode()).records == 3


def _validator(told: dict[str, Any], schema: dict[str, Any]) -> jsonschema_rs.Validator:
    return jsonschema_rs.Draft202012Validator({**schema, "components": told["components"]})


# Answers


def test_every_operation_has_an_answer_as_it_is_described(described: BaseSchema) -> None:
    asked = set()
    for operation in operations(described):
        if operation.path == "/v1/ingest":
            continue
        asked.add(operation.path)
        for path_parameters, query in QUESTIONS.get(operation.path, [({}, {})]):
            parts: dict[str, Any] = {"path_parameters": path_parameters, "query": query}
            if operation.method == "post":
                parts = {"body": {"sources": [KNOWN.reading]}, "media_type": "application/json"}
            assert check(operation.Case(**parts)) == 200, (operation.label, parts)
    assert asked >= QUESTIONS.keys()


@pytest.mark.parametrize("tag", TAGS)
def test_whatever_is_asked_is_answered_as_described(described: BaseSchema, offering: BaseSchema, tag: str) -> None:
    seen = ask_at_limits(described, tag, every=3)
    seen += ask_at_random(offering, tag, GenerationMode.POSITIVE, A_FEW)
    seen += ask_at_random(described, tag, GenerationMode.NEGATIVE, A_FEW)
    assert set(seen) <= {200, 400, 404, 405, 410, 413, 415, 422, 503}


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("tag", TAGS)
def test_whatever_is_asked_for_a_long_time(described: BaseSchema, offering: BaseSchema, tag: str) -> None:
    seen = ask_at_limits(described, tag)
    seen += ask_at_random(offering, tag, GenerationMode.POSITIVE, MANY)
    seen += ask_at_random(described, tag, GenerationMode.NEGATIVE, MANY)
    assert set(seen) <= {200, 400, 404, 405, 410, 413, 415, 422, 503}


def ask_at_limits(described: BaseSchema, tag: str, every: int = 1) -> Counter[int]:
    """Ask all operations with a tag what is at the limits of their description, on both sides of them: all of it, or
    every so many."""
    seen: Counter[int] = Counter()
    for operation in operations(described, tag):
        config = described.config.generation_for(operation=operation)
        modes = list(GenerationMode)
        cases = described.iter_coverage_cases(operation, generation_modes=modes, generation_config=config)
        for case in islice(cases, 0, None, every):
            seen[check(case)] += 1
    return seen


def ask_at_random(described: BaseSchema, tag: str, mode: GenerationMode, how_often: settings) -> Counter[int]:
    """Ask all operations with a tag something that fits their description, or does not."""
    seen: Counter[int] = Counter()
    for operation in operations(described, tag):

        @given(operation.as_strategy(generation_mode=mode))
        @how_often
        def ask(case: Question) -> None:
            # Of a query, everything is a text: `stream=true` is as good a name as any.
            seen[check(case, negative_data_rejection)] += 1

        try:
            ask()
        except Unsatisfiable:
            assert mode.is_negative and not operation.query, "what has no parameters cannot be asked wrongly"
    return seen
