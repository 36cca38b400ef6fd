"""The capture API: what a program says about its workflows, tasks and data while it runs."""

from edge_agent.capture.data import Data
from edge_agent.capture.decorator import task
from edge_agent.capture.errors import CaptureError
from edge_agent.capture.process import close, counts, flush, use
from edge_agent.capture.recorder import Recorder
from edge_agent.capture.tasks import Task
from edge_agent.capture.workflow import Workflow

__all__ = ["CaptureError", "Data", "Recorder", "Task", "Workflow", "close", "counts", "flush", "task", "use"]
