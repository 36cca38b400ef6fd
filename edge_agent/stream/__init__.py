"""A small stream engine whose results say which readings they came from."""

from edge_agent.stream.aggregators import Collect, Count, Distinct, First, Last, Max, Mean, Min, Sum, Top
from edge_agent.stream.builder import KeyedStream, Plan, Stream, Windowed
from edge_agent.stream.engine import Counts, Engine
from edge_agent.stream.errors import StreamError
from edge_agent.stream.feeder import Feeder
from edge_agent.stream.loopback import Loopback
from edge_agent.stream.run import Results, run
from edge_agent.stream.sources import IDLE, Watermark
from edge_agent.stream.times import hours, minutes, seconds
from protocol.plan import PlanError

__all__ = [
    "IDLE",
    "Collect",
    "Count",
    "Counts",
    "Distinct",
    "Engine",
    "Feeder",
    "First",
    "KeyedStream",
    "Last",
    "Loopback",
    "Max",
    "Mean",
    "Min",
    "Plan",
    "PlanError",
    "Results",
    "Stream",
    "StreamError",
    "Sum",
    "Top",
    "Watermark",
    "Windowed",
    "hours",
    "minutes",
    "run",
    "seconds",
]
