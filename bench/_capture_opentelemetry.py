"""OpenTelemetry: one span per task, in batches, as OTLP over HTTP with gzip.

What goes into a task are attributes at the span's start, what comes out attributes at its end; nothing is sent before
the end. An attribute count limit of 128 is the default, which would cut off what 100 and 100 attributes need: raised.
"""

from __future__ import annotations

from typing import Any

MOST_ATTRIBUTES = 1_000

_provider: Any
_tracer: Any


def start(server: str) -> None:
    """Set up what exports in the background."""
    global _provider, _tracer  # noqa: PLW0603
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import SpanLimits, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter = OTLPSpanExporter(endpoint=f"http://{server}/v1/traces", compression=Compression.Gzip)
    _provider = TracerProvider(span_limits=SpanLimits(max_attributes=MOST_ATTRIBUTES))
    _provider.add_span_processor(BatchSpanProcessor(exporter))
    _tracer = _provider.get_tracer("capture")


def finish() -> None:
    """Export what is left."""
    _provider.shutdown()


class Workflow:
    def __init__(self, id: int) -> None:
        self.id = id

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass


class Data:
    def __init__(self, id: str, workflow_id: int, attributes: dict[str, Any]) -> None:
        self.attributes = attributes


class Task:
    def __init__(self, id: str, workflow: Workflow, transformation_id: int, dependencies: list[str]) -> None:
        self.id = id
        self.workflow_id = workflow.id
        self.transformation_id = transformation_id
        self.dependencies = dependencies

    def begin(self, data: list[Data]) -> None:
        attributes = {
            "workflow": self.workflow_id,
            "transformation": self.transformation_id,
            "dependencies": self.dependencies,
            **data[0].attributes,
        }
        self._span = _tracer.start_span(self.id, attributes=attributes)

    def end(self, data: list[Data]) -> None:
        self._span.set_attributes(data[0].attributes)
        self._span.end()
