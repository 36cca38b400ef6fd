"""Records out to other provenance systems while they come in: ProvLight's provenance data translator.

A forwarder follows the durable log from a place that it remembers, has a `System` put the records into the words of
another system, and sends them there over HTTP. It moves on only when the other system has answered, so that everything
arrives at least once; ids are made of what the log says, so that twice is as good as once.
"""

from collector.forwarding.errors import ForwardingError, PositionInUse, PositionUnusable, SystemUnusable
from collector.forwarding.forwarder import Forwarder, ForwardOptions
from collector.forwarding.system import Remembering, Request, System

__all__ = [
    "ForwardOptions",
    "Forwarder",
    "ForwardingError",
    "PositionInUse",
    "PositionUnusable",
    "Remembering",
    "Request",
    "System",
    "SystemUnusable",
]
