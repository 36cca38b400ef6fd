"""Send and Receive: tuples that go from one agent to another. Loaded only for plans that have any."""

from edge_agent.exchange.exchange import Exchange

__all__ = ["Exchange"]
