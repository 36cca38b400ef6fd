"""The log for people and tests: its rows as the records that the agents sent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from collector.log import LogError, LogReader, Row, ShardReport, has_segments, listed, log_id, verify
from collector.registered import Registered
from collector.registry import RegistryView, registry_fault
from protocol.chunks import payload_section, read_progress
from protocol.ids import StreamId
from protocol.records import Delivery, Gap, Origin, Progress
from protocol.structs import Struct, names_of
from protocol.wire.errors import MalformedBatch
from protocol.wire.sections import Kind, decode_section, records
from protocol.wire.values import decode

_OWN_KINDS = (Kind.SNAPSHOT, Kind.RETIRE)  # rows that no agent has sent


class Entry(NamedTuple):
    """A record in the log, and where it stands: which batch of which epoch of an agent told it.

    The epoch is the number by which people know it, None if there is no registry to tell.
    """

    kind: Kind
    agent: str
    nonce: int
    seq: int
    record: Any
    epoch: int | None = None


def entries(folder: Path, kinds: Sequence[Kind] = (), agent: str | None = None) -> Iterator[Entry]:
    """All records, shard by shard, each in the order of the log."""
    reader = LogReader(folder)
    with closing(RegistryView(folder / "registry.db")) as registered:
        for shard in reader.shards():
            epochs: dict[tuple[str, int], int | None] = {}
            names: dict[int, StreamId] = {}
            for row in reader.rows(shard, reader.start(shard), reader.end(shard)):
                if row.kind in (Kind.REGISTER, Kind.SNAPSHOT, Kind.EPOCH):
                    learn_names(row, epochs, names)
                kind = Kind(row.data[0]) if row.kind == Kind.PAYLOAD else Kind(row.kind)
                if (kinds and kind not in kinds) or (agent is not None and row.agent != agent):
                    continue
                start = (row.agent, row.nonce)
                if start not in epochs:  # it has told of no stream, and no segment has begun since
                    epochs[start] = registered.epoch_of(*start)
                epoch = epochs[start]
                for record in records_of(row, epoch or 0, names):
                    yield Entry(kind, row.agent, row.nonce, row.seq, record, epoch)


def learn_names(row: Row, epochs: dict[tuple[str, int], int | None], names: dict[int, StreamId]) -> None:
    """Note the names of streams, and the epochs of starts: where they are told, or in a snapshot if that was in a
    segment that is gone. For rows of the kinds REGISTER, SNAPSHOT and EPOCH."""
    told = decode(row.data)
    if row.kind == Kind.EPOCH:
        epochs[row.agent, row.nonce] = told
    elif row.kind == Kind.REGISTER:
        number, agent, epoch, name, nonce, *_ = told
        names[number] = StreamId(agent, epoch, name, nonce)
        if (agent, nonce) == (row.agent, row.nonce):  # of others it says how they count themselves
            epochs[agent, nonce] = epoch
    else:
        epochs[row.agent, row.nonce] = told["epoch"]
        for name, number in told["own_streams"].items():
            names[number] = StreamId(row.agent, told["epoch"], name, row.nonce)


def records_of(row: Row, epoch: int, names: dict[int, StreamId]) -> Iterator[Any]:
    """The records that a row holds, by the names that were learned before it."""
    own = StreamId(row.agent, epoch, "", row.nonce)
    match row.kind:
        case Kind.SOURCE | Kind.DELIVERY:
            return  # told with their payloads
        case Kind.PAYLOAD:
            yield from records(decode_section(*payload_section(row.data), own))
        case Kind.PROGRESS:
            chunk = read_progress(row.data)
            for number, watermark, hold in zip(chunk.stream, chunk.watermark, chunk.hold, strict=True):
                yield Progress(names[int(number)], int(watermark), int(hold))
        case Kind.REGISTER | Kind.SNAPSHOT | Kind.EPOCH:
            yield decode(row.data)
        case Kind.RETIRE:
            yield None
        case _:
            yield from records(decode_section(Kind(row.kind), row.data, own))


def lines(folder: Path, agent: str | None, kinds: Sequence[str], limit: int | None) -> Iterator[str]:
    """Records as lines of JSON. ValueError if there is no log, or no such kind."""
    _check_folder(folder)
    wanted: list[Kind] = []
    for name in kinds:
        if name.upper() not in Kind.__members__:
            raise ValueError(f"there is no kind {name!r}, only {', '.join(kind.name.lower() for kind in Kind)}")
        wanted.append(Kind[name.upper()])
    for count, entry in enumerate(entries(folder, wanted, agent)):
        if count == limit:
            return
        line = {"kind": entry.kind.name.lower(), "agent": entry.agent, "epoch": entry.epoch}
        line |= {"batch": entry.seq, "record": entry.record}
        yield json.dumps(line, default=lambda value: _json(_plain(value)))


def _json(value: Any) -> Any:
    """A value with nothing in it that JSON does not know: keys that are no texts, numbers that are none."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _json(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(part) for part in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _plain(value: Any) -> Any:
    if isinstance(value, Delivery):
        origins = [{"id": str(each.id), "kind": each.kind.value, "ts": each.ts} for each in value.origins]
        return {"id": str(value.id), "ts": value.ts, "payload": value.payload, "origins": origins}
    if isinstance(value, Origin):
        return {"id": str(value.id), "ts": value.ts, "payload": getattr(value, "payload", None)}
    if isinstance(value, Progress):
        return {"stream": str(value.stream), "watermark": value.watermark, "hold": value.hold}
    if isinstance(value, Struct):
        found = {name: getattr(value, name) for name in names_of(value)}
        return {"event": type(value).__name__, **found} if "number" in found else found
    if isinstance(value, bytes):
        return value.hex()
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


def check(folder: Path) -> Iterator[tuple[str, bool]]:
    """A line per shard that holds anything, one per fault, and one for all together, with whether it is a fault.
    ValueError if there is no log."""
    _check_folder(folder)
    empty: list[int] = []
    there: set[int] = set()
    shards = rows = size_bytes = faults = 0
    registry = folder / "registry.db"
    unsound = registry_fault(registry)
    for fault in (_id_fault(folder), unsound):
        if fault:
            faults += 1
            yield fault, True
    with closing(RegistryView(registry)) as view:
        registered = Registered(None if unsound else view)
        for report in verify(folder, own_kinds=_OWN_KINDS, gap_of=gap_of, misfit_of=registered.misfit_of):
            shards += 1
            rows, size_bytes, faults = rows + report.rows, size_bytes + report.size_bytes, faults + len(report.findings)
            if report.segments or report.findings:
                there.add(report.shard)
            if not report.rows and not report.torn_bytes and not report.findings:
                empty.append(report.shard)
                continue
            yield _summary(report), False
            for finding in report.findings:
                yield str(finding), True
    if gone := registered.gone(there):
        faults += 1
        yield f"nothing is left of shards {listed(gone)}, though the registry knows agents of them: put them back", True
    if empty:
        yield f"nothing in shards {listed(empty)}", False
    yield f"{shards} shards, {rows} rows, {size_bytes} bytes: {f'{faults} faults' if faults else 'sound'}", False


def _id_fault(folder: Path) -> str:
    """What would keep others from knowing which log this is; nothing, if all is well."""
    path = folder / "id"
    if not path.exists():
        told = f"{path} is not there: put it back, or all that was made from the log will be refused"
        return told if has_segments(folder) else ""
    try:
        log_id(folder)
    except LogError as error:
        return str(error)
    return ""


def gap_of(row: Row) -> tuple[int, range] | None:
    """The batches that a row says will never come, or that it stands for itself, and of which start: a later one may
    tell it of an earlier one."""
    if row.kind != Kind.GAP:
        return None
    try:
        gaps = decode_section(Kind.GAP, row.data, StreamId(row.agent, 0, "", row.nonce))
    except MalformedBatch:
        return None
    for gap in gaps if isinstance(gaps, list) else ():
        if isinstance(gap, Gap) and gap.batches is not None:
            return gap.nonce, range(gap.batches[0], gap.batches[1] + 1)
    return None


def _summary(report: ShardReport) -> str:
    text = f"shard {report.shard}: {report.segments} segments, {report.batches} commits, {report.rows} rows, "
    text += f"{report.size_bytes} bytes"
    if report.torn_bytes:
        text += f", {report.torn_bytes} bytes unfinished"
    if report.losses:
        text += f", rows of {report.losses} segments lost"
    return f"{text}: {len(report.findings)} faults" if report.findings else f"{text}: sound"


def _check_folder(folder: Path) -> None:
    try:
        is_log = (folder / "registry.db").exists() or has_segments(folder)
    except OSError as error:
        raise ValueError(f"{folder} cannot be read: {error.strerror}") from error
    if not is_log:
        raise ValueError(f"{folder} is no log: it has no registry.db")
