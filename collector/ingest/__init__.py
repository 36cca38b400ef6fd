"""Backward provenance from any other streaming system, into the same log as that of our own agents."""

from collector.ingest.document import MOST_DOCUMENT_BYTES, Document, read_json, read_msgpack
from collector.ingest.errors import BadDocument, NotAcknowledged, OutOfOrder, TooLarge
from collector.ingest.records import nonce_of
from collector.ingest.sending import WAIT_S, Accepted, ingest
from collector.mqtt_link import Busy, MqttAway

__all__ = [
    "MOST_DOCUMENT_BYTES",
    "WAIT_S",
    "Accepted",
    "BadDocument",
    "Busy",
    "Document",
    "MqttAway",
    "NotAcknowledged",
    "OutOfOrder",
    "TooLarge",
    "ingest",
    "nonce_of",
    "read_json",
    "read_msgpack",
]
