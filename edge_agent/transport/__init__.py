"""The MQTT-SN client of a device: `Client`, the errors it raises, and the search for a gateway."""

from edge_agent.transport.client import Client
from edge_agent.transport.config import SessionConfig, Will
from edge_agent.transport.discovery import Gateway, search_gateways
from edge_agent.transport.link import State
from edge_agent.transport.pending import (
    ClientClosed,
    Delivery,
    DeliveryFailed,
    Message,
    Pending,
    QueueFull,
    Refused,
    Stats,
    TransportError,
)
from edge_agent.transport.session import ClientSession
from protocol.mqttsn import RetryPolicy

__all__ = [
    "Client",
    "ClientClosed",
    "ClientSession",
    "Delivery",
    "DeliveryFailed",
    "Gateway",
    "Message",
    "Pending",
    "QueueFull",
    "Refused",
    "RetryPolicy",
    "SessionConfig",
    "State",
    "Stats",
    "TransportError",
    "Will",
    "search_gateways",
]
