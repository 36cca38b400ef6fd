"""A document of another streaming system becomes a batch, as an agent would have made it.

The caller says all that makes a batch unique: the agent, the run (a start of the job) and the batch's number. So the
same document is the same batch, whoever takes it, and however often: the log has it once. Nothing is kept here.

Whatever is wrong is told here, with the field's name. What is right can be read by the translator: it is read back once
before it leaves, so that nothing that was taken is put into quarantine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from collector.ingest.doubled import check_json, check_msgpack
from collector.ingest.errors import BadDocument, TooLarge
from collector.ingest.fields import Object, agent_name, as_object, list_of, text, whole
from collector.ingest.plans import Declaration, read_plan
from collector.ingest.records import MOST_COUNT, Records, nonce_of
from protocol.ids import StreamId
from protocol.records import Declared
from protocol.wire.batch import MOST_BATCH_BYTES, Header, close_batch, decode_batch, frame
from protocol.wire.compression import MOST_BODY_BYTES
from protocol.wire.errors import MalformedBatch
from protocol.wire.packer import Packer, Unserialisable
from protocol.wire.sections import Pending, encode_sections, pending

MOST_DOCUMENT_BYTES = 4 << 20
MOST_RECORDS = 10_000


@dataclass(frozen=True, slots=True)
class Document:
    """A document that was read: one batch of one run of an agent."""

    agent: str
    nonce: int
    epoch: int
    batch: int
    records: int
    data: bytes
    """The batch, not framed."""


def read_json(data: bytes) -> Document:
    """A document in JSON. BadDocument or TooLarge say what is wrong."""
    return _read(data, _from_json, "JSON")


def read_msgpack(data: bytes) -> Document:
    """A document of the same shape in MessagePack."""
    return _read(data, _from_msgpack, "MessagePack")


def _from_json(data: bytes) -> object:
    value = msgspec.json.decode(data)
    check_json(data)
    return value


def _from_msgpack(data: bytes) -> object:
    value = msgspec.msgpack.decode(data)
    check_msgpack(data, value)
    return value


def _read(data: bytes, decode: Callable[[bytes], object], language: str) -> Document:
    if len(data) > MOST_DOCUMENT_BYTES:
        raise TooLarge(f"a document of {len(data)} bytes, and {MOST_DOCUMENT_BYTES} are allowed: divide its records")
    try:
        value = decode(data)
    except RecursionError:
        raise BadDocument("", "nested too deep") from None
    except BadDocument:
        raise
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:
        raise BadDocument("", f"no {language}: {error}") from error
    return _document(value)


def _document(value: object) -> Document:
    document = as_object(value, ("agent", "run", "epoch", "batch"), ("plan", "records"))
    agent = agent_name(document["agent"], "agent")
    nonce = nonce_of(agent, text(document, "run"))
    epoch, batch = whole(document, "epoch", 0, MOST_COUNT), whole(document, "batch", 0, MOST_COUNT)
    plan = _plan(document, agent, batch)
    records = list_of(document, "records") if "records" in document else []
    if len(records) > MOST_RECORDS:
        raise TooLarge(f"{len(records)} records, and {MOST_RECORDS} are allowed: send them as several batches")
    if not records and batch:
        raise BadDocument("records", "is empty: only batch 0 may hold nothing but a plan")
    told = Records(StreamId(agent, epoch, "", nonce), plan)
    for place, record in enumerate(records):
        try:
            told.add(record)
        except BadDocument as error:
            raise error.inside(f"records[{place}]") from None
    rows = told.rows()
    if plan is not None and batch == 0:
        rows.insert(0, _declared(plan))
    data = _encoded(Header(epoch, nonce, batch), agent, rows, len(records))
    return Document(agent, nonce, epoch, batch, len(records), data)


def _plan(document: Object, agent: str, batch: int) -> Declaration | None:
    if document.get("plan") is None:
        if batch == 0:
            raise BadDocument("plan", "is missing: batch 0 tells the plan")
        return None
    try:
        return read_plan(document["plan"], agent)
    except BadDocument as error:
        raise error.inside("plan") from None


def _declared(plan: Declaration) -> Pending:
    try:
        return pending(Declared(plan.document.to_json()), Packer(strict=True))
    except Unserialisable as error:
        raise TooLarge(f"the plan is too large for a batch ({error}): name fewer streams") from error


def _encoded(header: Header, agent: str, rows: list[Pending], records: int) -> bytes:
    body = encode_sections(rows, agent, header.nonce, 0)
    if len(body) > MOST_BODY_BYTES:
        reason = f"{len(body)} bytes before compression, and a batch has at most {MOST_BODY_BYTES}"
        raise TooLarge(f"{reason}: {_how_to_divide(records, len(body) / MOST_BODY_BYTES)}")
    data = close_batch(header, body)
    size = len(frame(data, agent, oldest=False))
    if size > MOST_BATCH_BYTES:
        reason = f"{size} bytes after compression, and a batch has at most {MOST_BATCH_BYTES}"
        raise TooLarge(f"{reason}: {_how_to_divide(records, size / MOST_BATCH_BYTES)}")
    try:
        decode_batch(data, agent)
    except MalformedBatch as error:
        raise TooLarge(f"too much for one batch ({error}): {_how_to_divide(records, 2)}") from error
    return data


def _how_to_divide(records: int, too_large: float) -> str:
    """What to do about a batch that is so many times too large."""
    if records == 0:
        return "name fewer streams in the plan"
    if records == 1:
        return "divide its origins over several parts (part and parts), each in a batch of its own"
    each = max(1, int(records / too_large * 0.8))
    return f"send it as several batches of at most {each} records, in this order, with the plan in batch 0"
