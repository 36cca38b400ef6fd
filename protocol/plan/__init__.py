"""Query plans as data: what a device runs and the cloud reads."""

from protocol.plan.delays import count_paths, delays, fleet_delays, paths
from protocol.plan.document import MAX_JSON_BYTES, MAX_NODES, PlanDocument, in_order
from protocol.plan.errors import PlanError
from protocol.plan.node import DELIVERING, JSON, ORIGINS, Node, check_node, delivering_name, window_ms

__all__ = [
    "DELIVERING",
    "JSON",
    "MAX_JSON_BYTES",
    "MAX_NODES",
    "ORIGINS",
    "Node",
    "PlanDocument",
    "PlanError",
    "check_node",
    "count_paths",
    "delays",
    "delivering_name",
    "fleet_delays",
    "in_order",
    "paths",
    "window_ms",
]
