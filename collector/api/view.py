"""The store in the words of the API: ids as people write them, tuples with what they said and how they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from collector.api.models import Label, TupleVertex
from collector.names import Epoch, StreamPattern, TupleName
from collector.store import StoreReader
from collector.store.payloads import Payload
from collector.store.people import StreamName
from collector.store.plain import as_plain
from collector.store.vertices import Sent, Sink, Source, TupleFound
from protocol.chunks import SEQ_BITS
from protocol.graph import SinkFlag
from protocol.records import BEGINNING, END_OF_TIME
from protocol.wire.sections import Kind

_SEQS = (1 << SEQ_BITS) - 1


def time_or_none(ms: int | None) -> int | None:
    """A time, unless it is one of the two ends of time."""
    return None if ms is None or ms in (BEGINNING, END_OF_TIME) else ms


class View:
    """One reader, and the names that it has read last."""

    def __init__(self, reader: StoreReader) -> None:
        self.reader = reader
        self._version = -1
        self._streams: dict[int, StreamName] = {}
        self._labels: dict[int, Label] = {}

    def refresh(self) -> None:
        """Forget names that may have changed."""
        version = self.reader.data_version
        if version != self._version:
            self._version = version
            self._streams.clear()
            self._labels.clear()

    # Names

    def stream_of(self, number: int) -> StreamName:
        """Whose stream has a number."""
        found = self._streams.get(number)
        if found is None:
            named = self.reader.stream_names([number])
            found = self._streams[number] = named.get(number, StreamName("?", number, None, "?"))
        return found

    def name_of(self, tuple_id: int) -> str:
        """A tuple as people write it."""
        of = self.stream_of(tuple_id >> SEQ_BITS)
        epoch = of.epoch if of.epoch is not None else Epoch(None, of.nonce)
        return f"{of.agent}/{of.name}@{epoch}:{tuple_id & _SEQS}"

    def tuple_of(self, name: TupleName) -> int | None:
        """The id of a tuple, None if there is no such stream."""
        streams = self.streams_like(StreamPattern(name.stream, name.agent, name.epoch))
        return None if streams is None else streams << SEQ_BITS | name.seq

    def streams_like(self, pattern: StreamPattern) -> int | None:
        """The one stream that is meant by an agent, a name and an epoch. If others have counted the starts of the agent
        in another way, that of the agent itself."""
        found = self.stream_numbers(pattern)
        if len(found) < 2:
            return found[0] if found else None
        epochs = {start.nonce: start.epoch for start in self.reader.starts_of(str(pattern.agent))}
        own = [each for each in found if (of := self.stream_of(each)).epoch == epochs.get(of.nonce)]
        return (own or found)[-1]

    def stream_numbers(self, pattern: StreamPattern) -> list[int]:
        """The streams that a pattern means."""
        epoch = pattern.epoch.number if pattern.epoch else None
        found = self.reader.streams(agent=pattern.agent, name=pattern.stream, epoch=epoch)
        nonce = pattern.epoch.nonce if pattern.epoch and pattern.epoch.number is None else None
        return [each.number for each in found if nonce is None or each.nonce == nonce]

    # Tuples

    def tuples(self, ids: Collection[int], with_payloads: bool = True) -> dict[int, TupleVertex]:
        """These tuples, without those of which nothing is known."""
        found = self.reader.tuples(ids)
        unknown = [each for each in ids if each not in found]
        said = self.reader.payloads(ids if with_payloads else unknown) if with_payloads or unknown else {}
        made = {each: self._tuple(what, said.get(each) if with_payloads else None) for each, what in found.items()}
        for each in unknown:
            if each in said:
                made[each] = self._only_said(each, said[each], with_payloads)
        return made

    def tuple_list(self, ids: Iterable[int], with_payloads: bool = True) -> list[TupleVertex]:
        """These tuples in this order; of one that is known by name only, its name."""
        wanted = list(ids)
        found = self.tuples(wanted, with_payloads)
        return [found.get(each) or self._only_named(each) for each in wanted]

    def _tuple(self, found: TupleFound, said: Payload | None) -> TupleVertex:
        match found:
            case Sink():
                state = "open"
                if found.label_stamp is not None:
                    state = "incomplete" if found.flags & SinkFlag.INCOMPLETE else "complete"
                return self._vertex(found.id, "sink", found.ts, said, state, found.label_stamp, found.origins)
            case Source():
                state = "alive" if found.label_stamp is None else "expired"
                kind = "intermediate" if found.is_sent else "source"
                return self._vertex(found.id, kind, found.ts, said, state, found.label_stamp)
            case Sent():
                return self._vertex(found.id, "intermediate", found.ts, said)

    def _only_said(self, tuple_id: int, said: Payload, with_payload: bool) -> TupleVertex:
        """A tuple that has contributed to nothing so far."""
        kind = "sink" if said.kind is Kind.DELIVERY else "source"
        return self._vertex(tuple_id, kind, said.ts, said if with_payload else None)

    def _only_named(self, tuple_id: int) -> TupleVertex:
        """A tuple that others have named, and that never came itself."""
        return self._vertex(tuple_id, "intermediate", None, None)

    def _vertex(
        self,
        tuple_id: int,
        kind: Any,
        ts: int | None,
        said: Payload | None,
        state: Any = None,
        label_stamp: int | None = None,
        origins: int | None = None,
    ) -> TupleVertex:
        of = self.stream_of(tuple_id >> SEQ_BITS)
        return TupleVertex(
            id=self.name_of(tuple_id),
            kind=kind,
            agent=of.agent,
            epoch=of.epoch,
            stream=of.name,
            seq=tuple_id & _SEQS,
            ts=ts,
            state=state,
            since=None if label_stamp is None else self._label(label_stamp),
            origins=origins,
            payload=None if said is None else as_plain(said.value),
        )

    def _label(self, stamp: int) -> Label:
        found = self._labels.get(stamp)
        if found is None:
            found = Label(stamp=time_or_none(stamp), written_ms=self.reader.told_at(stamp))
            self._labels[stamp] = found
        return found
