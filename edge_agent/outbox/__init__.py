"""From the caller to the disk: records are queued, grouped, journaled and spooled, and found again after a crash."""

from edge_agent.outbox.outbox import Outbox

__all__ = ["Outbox"]
