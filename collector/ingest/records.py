"""The records of a document: what a job says of its streams, checked and ready for a batch.

source     a tuple that came into the job from outside
delivery   a tuple that reached a sink or a send, and the tuples that it came from
progress   a promise about a delivering stream; it counts after all tuples of its document, wherever it stands
gap        tuples that will never come
end        the run has ended, and nothing follows
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from collector.ingest.errors import BadDocument, TooLarge
from collector.ingest.fields import Object, agent_name, as_object, flag, list_of, promise_ms, text, time_ms, whole
from collector.ingest.plans import Declaration
from protocol.ids import StreamId
from protocol.plan.errors import shown
from protocol.records import END_OF_TIME, Delivery, End, Gap, Lost, Origin, OriginKind, Progress, SourcePayload
from protocol.wire.packer import Packer, Unserialisable
from protocol.wire.sections import MOST_DELIVERY_PARTS, Kind, Pending, pending

MOST_COUNT = 2**53 - 1  # every JSON library can write it
MOST_SEQ = 2**36 - 1
MOST_NONCE = 2**64 - 1
MOST_ORIGINS = 100_000
MOST_STREAMS = 1_000
_RUN = ("run", "nonce", "epoch")


def nonce_of(agent: str, run: str) -> int:
    """What machines know a run by: the first 64 bits, high byte first, of the SHA-256 of AGENT/RUN in UTF-8."""
    return int.from_bytes(sha256(f"{agent}/{run}".encode()).digest()[:8], "big")


class Records:
    """Takes the records of one document, one after the other. `own` stands for the run that tells them."""

    def __init__(self, own: StreamId, plan: Declaration | None) -> None:
        self._own = own
        self._plan = plan
        self._packer = Packer(strict=True)
        self._rows: list[Pending] = []
        self._progress: dict[StreamId, Progress] = {}
        self._streams: dict[StreamId, StreamId] = {}
        self._told: set[tuple[Kind, StreamId, int, int]] = set()
        self._parts: dict[tuple[StreamId, int], int] = {}
        self._times: dict[tuple[StreamId, int], int] = {}
        self._origins = 0
        self._has_ended = False

    def rows(self) -> list[Pending]:
        """All of them, as a batch takes them; of each stream's progress the last."""
        return self._rows + [pending(each, self._packer) for each in self._progress.values()]

    def add(self, value: object) -> None:
        """Take a record. BadDocument says what is wrong with it."""
        record = as_object(value, (), tuple(_READERS))
        if len(record) != 1:
            raise BadDocument("", f"exactly one of {', '.join(_READERS)} is expected, not {len(record)}")
        if self._has_ended:
            raise BadDocument("", "stands behind the end, and nothing follows that")
        for kind, part in record.items():
            try:
                _READERS[kind](self, part)
            except BadDocument as error:
                raise error.inside(kind) from None

    # One of each kind

    def _add_source(self, value: object) -> None:
        part = as_object(value, ("stream", "seq", "ts"), ("payload",))
        stream = self._own_source(part)
        seq, ts = whole(part, "seq", 0, MOST_SEQ), time_ms(part, "ts")
        self._once(Kind.SOURCE, stream, seq, 0)
        self._at_one_time(stream, seq, ts)
        self._check_payload(part)
        self._rows.append(pending(SourcePayload(stream, seq, ts, part.get("payload")), self._packer))

    def _add_delivery(self, value: object) -> None:
        part = as_object(value, ("stream", "seq", "ts", "origins"), ("payload", "part", "parts"))
        stream = self._own_delivering(part)
        seq, ts = whole(part, "seq", 0, MOST_SEQ), time_ms(part, "ts")
        number, parts = self._part(part)
        self._once(Kind.DELIVERY, stream, seq, number)
        self._at_one_time(stream, seq, ts)
        if self._parts.setdefault((stream, seq), parts) != parts:
            raise BadDocument("parts", "other parts of this tuple say another number")
        self._check_payload(part)
        origins: dict[tuple[StreamId, int], Origin] = {}
        for place, each in enumerate(self._counted(list_of(part, "origins"))):
            try:
                origin = self._origin(each, stream.name, ts)
                before = origins.setdefault((origin.stream, origin.seq), origin)
                if before is not origin:
                    raise _named_before(before, origin)
            except BadDocument as error:
                raise error.inside(f"origins[{place}]") from None
        oldest_first = tuple(sorted(origins.values(), key=lambda origin: origin.ts))
        row = pending(Delivery(stream, seq, ts, part.get("payload"), oldest_first), self._packer)
        self._rows.append((*row[:-1], number << 8 | parts - 1))

    def _add_progress(self, value: object) -> None:
        part = as_object(value, ("stream", "watermark"), ("hold",))
        stream = self._own_delivering(part)
        hold = END_OF_TIME if part.get("hold") is None else promise_ms(part, "hold")
        told = Progress(stream, promise_ms(part, "watermark"), hold)
        before = self._progress.get(stream)
        if before is not None and told.watermark < before.watermark:
            raise BadDocument("watermark", f"goes back from {before.watermark}: a promise stays one")
        self._progress[stream] = told

    def _add_gap(self, value: object) -> None:
        part = as_object(value, ("reason", "tuples"), _RUN)
        epoch, nonce = self._run(part, self._own.agent)
        lost: list[Lost] = []
        for place, each in enumerate(list_of(part, "tuples", may_be_empty=False)):
            try:
                span = as_object(each, ("stream", "first", "last"))
                first = whole(span, "first", 0, MOST_SEQ)
                lost.append(Lost(text(span, "stream"), first, whole(span, "last", first, MOST_SEQ)))
            except BadDocument as error:
                raise error.inside(f"tuples[{place}]") from None
        self._rows.append(pending(Gap(text(part, "reason"), epoch, nonce, tuples=tuple(lost)), self._packer))

    def _add_end(self, value: object) -> None:
        part = as_object(value, ("ts",))
        self._rows.append(pending(End(time_ms(part, "ts")), self._packer))
        self._has_ended = True

    # Streams

    def _own_source(self, part: Object) -> StreamId:
        name = text(part, "stream")
        if self._plan is not None and name not in self._plan.sources:
            raise BadDocument("stream", f"the plan has no source {shown(name)}")
        return self._stream(self._own.agent, self._own.epoch, name, self._own.nonce)

    def _own_delivering(self, part: Object) -> StreamId:
        name = text(part, "stream")
        if self._plan is not None and name not in self._plan.delivering:
            raise BadDocument("stream", f"the plan has no sink and no send {shown(name)}")
        return self._stream(self._own.agent, self._own.epoch, name, self._own.nonce)

    def _stream(self, agent: str, epoch: int, name: str, nonce: int) -> StreamId:
        stream = StreamId(agent, epoch, name, nonce)
        if stream not in self._streams and len(self._streams) >= MOST_STREAMS:
            raise BadDocument("stream", f"{shown(name)} is one too many: a document names {MOST_STREAMS} streams")
        return self._streams.setdefault(stream, stream)

    def _run(self, part: Object, agent: str) -> tuple[int, int]:
        """Epoch and nonce of the start of an agent that is meant: this one, unless another is named."""
        own = self._own
        if "run" not in part and "nonce" not in part:
            if agent != own.agent:
                raise BadDocument("run", f"is missing: which start of {agent} is it, by its run or its nonce?")
            nonce, epoch = own.nonce, whole(part, "epoch", 0, MOST_COUNT) if "epoch" in part else own.epoch
        else:
            if "run" in part and "nonce" in part:
                raise BadDocument("nonce", "the run says it already")
            nonce = nonce_of(agent, text(part, "run")) if "run" in part else _nonce(part)
            if "epoch" not in part:
                raise BadDocument("epoch", "is missing: by what number is that start known?")
            epoch = whole(part, "epoch", 0, MOST_COUNT)
        if agent == own.agent and nonce == own.nonce and epoch != own.epoch:
            raise BadDocument("epoch", f"this run has the number {own.epoch}")
        return epoch, nonce

    # Tuples

    def _origin(self, value: object, delivering: str, ts: int) -> Origin:
        part = as_object(value, ("stream", "seq", "ts"), ("agent", *_RUN, "remote"))
        agent = agent_name(part["agent"], "agent") if "agent" in part else self._own.agent
        is_remote = flag(part, "remote")
        if is_remote and agent == self._own.agent:
            raise BadDocument("remote", "a remote tuple is one that another agent has sent")
        epoch, nonce = self._run(part, agent)
        stream = self._stream(agent, epoch, text(part, "stream"), nonce)
        origin = Origin(
            OriginKind.REMOTE if is_remote else OriginKind.SOURCE,
            stream,
            whole(part, "seq", 0, MOST_SEQ),
            time_ms(part, "ts"),
        )
        self._at_one_time(stream, origin.seq, origin.ts)
        if self._plan is not None:
            self._check_way(self._plan, origin, delivering, ts)
        return origin

    def _check_way(self, plan: Declaration, origin: Origin, delivering: str, ts: int) -> None:
        """The plan says from where a result may come, and how much older that may be: the cloud counts on it."""
        stream = origin.stream
        if origin.kind is OriginKind.REMOTE:
            ways = plan.received.get((stream.agent, stream.name))
            if ways is None:
                raise BadDocument("stream", f"the plan does not receive {shown(stream.name)} from {stream.agent}")
        elif stream.agent == self._own.agent:
            is_own = stream.nonce == self._own.nonce
            if is_own and stream.name not in plan.sources:
                raise BadDocument("stream", f"the plan has no source {shown(stream.name)}")
            ways = (stream.name,)
        else:
            return  # a source tuple that came through others unchanged, and does not say which way
        reach = [each for each in (plan.reach_ms(way, delivering) for way in ways) if each is not None]
        if not reach:
            if stream.agent == self._own.agent and stream.nonce != self._own.nonce:
                return  # a run before this one had another plan
            raise BadDocument("stream", f"the plan has no way from {shown(stream.name)} to {shown(delivering)}")
        if plan.is_bounded and ts - origin.ts > max(reach):
            raise BadDocument(
                "ts", f"{ts - origin.ts} ms before its result, and the windows of the plan hold {max(reach)} ms"
            )

    def _part(self, part: Object) -> tuple[int, int]:
        """Which part of a tuple with very many origins, of how many."""
        if "part" not in part and "parts" not in part:
            return 0, 1
        for key in ("part", "parts"):
            if key not in part:
                raise BadDocument(key, "is missing: a part has a number (part) of how many (parts)")
        parts = whole(part, "parts", 1, MOST_DELIVERY_PARTS)
        return whole(part, "part", 0, parts - 1), parts

    def _counted(self, origins: list[object]) -> list[object]:
        self._origins += len(origins)
        if self._origins > MOST_ORIGINS:
            raise TooLarge(
                f"more than {MOST_ORIGINS} origins: send fewer records at a time, or a delivery in several parts "
                "(part and parts), each in a batch of its own"
            )
        return origins

    def _once(self, kind: Kind, stream: StreamId, seq: int, number: int) -> None:
        key = (kind, stream, seq, number)
        if key in self._told:
            raise BadDocument("seq", f"{seq} of {shown(stream.name)} is told twice in this document")
        self._told.add(key)

    def _at_one_time(self, stream: StreamId, seq: int, ts: int) -> None:
        known = self._times.setdefault((stream, seq), ts)
        if known != ts:
            raise BadDocument("ts", f"{ts}, and elsewhere in this document the same tuple has {known}")

    def _check_payload(self, part: Object) -> None:
        try:
            self._packer.encode(part.get("payload"))
        except Unserialisable as error:
            raise BadDocument("payload", str(error)) from error


_READERS: dict[str, Callable[[Records, object], None]] = {
    "source": Records._add_source,
    "delivery": Records._add_delivery,
    "progress": Records._add_progress,
    "gap": Records._add_gap,
    "end": Records._add_end,
}


def _named_before(before: Origin, origin: Origin) -> BadDocument:
    """An origin that a delivery has named already."""
    if before.kind is not origin.kind:
        return BadDocument("remote", "the same tuple is among the origins, and is it not there")
    return BadDocument("seq", f"{origin.seq} of {shown(origin.stream.name)} is among the origins already: each once")


def _nonce(part: Object) -> int:
    """A number, or its digits as a text, as 64 bits are more than some JSON libraries can read."""
    value = part["nonce"]
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        part = {"nonce": int(value)}
    return whole(part, "nonce", 0, MOST_NONCE)
