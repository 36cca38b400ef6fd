"""What tuples came from and went into directly, over sent tuples, in either direction, against plain dicts."""

from __future__ import annotations

import sqlite3
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from collector.store import StoreReader, StoreWriter, schema
from collector.store.packing import groups_of, pack_groups
from collector.store.pages import PAGE_BITS
from collector.store.vertices import Sent, Sink, Source
from protocol.chunks import DeliveryChunk
from protocol.graph import Reason
from protocol.records import END_OF_TIME
from tests.collector.store.graphs import QuickWriter, columns, delivery, graph_batch, tuple_id

S = [tuple_id(1, seq) for seq in range(0, 9_000, 900)]
D = [tuple_id(2, seq) for seq in range(0, 9_000, 1_000)]
K = [tuple_id(3, seq) for seq in range(0, 9_000, 1_000)]


def indirect(sink: int, ts: int, origins: list[tuple[int, int, int]], part: int = 0) -> DeliveryChunk:
    """A sink tuple that came from sent ones."""
    made = delivery(sink, ts, origins, part=part)
    made.sent[:] = 0
    return made


class Truth:
    """Sources, tuples that were sent, some of them after others, and sinks, by what each came from directly."""

    def __init__(self, chance: Random) -> None:
        self.direct: dict[int, set[int]] = {}
        for place, each in enumerate(D):
            before = [*S, *D[:place]]
            self.direct[each] = set(chance.sample(before, chance.randint(1, min(4, len(before)))))
        for each in K:
            self.direct[each] = set(chance.sample([*S, *D] if chance.random() < 0.6 else S, chance.randint(0, 5)))
        self.late = {
            (origin, each) for each in K for origin in self.direct[each] if origin in S and chance.random() < 0.1
        }

    def sources(self, each: int) -> set[int]:
        """All that it came from."""
        if each in S:
            return {each}
        return {source for origin in self.direct[each] for source in self.sources(origin)}

    def write(self, writer: StoreWriter, chance: Random) -> None:
        """All of it in some batches."""
        told = list(K)
        chance.shuffle(told)
        cuts = sorted({0, *chance.choices(range(len(told)), k=2), len(told)})
        writer.write(graph_batch("q", 0, sources=dict.fromkeys(S, 5), deliveries=[self._delivery(each) for each in D]))
        for number, (begin, end) in enumerate(pairwise(cuts), 1):
            sinks = told[begin:end]
            resolved = {(each, source) for each in sinks for source in self.sources(each)}
            late = {(each, origin) for origin, each in self.late if each in sinks}
            writer.write(
                graph_batch(
                    "q",
                    number,
                    sinks=dict.fromkeys(sinks, 50),
                    edges=resolved - late,
                    late=[(*pair, 5, Reason.AFTER_LABEL) for pair in late],
                    deliveries=[self._delivery(each) for each in sinks if self.direct[each] & set(D)],
                )
            )

    def _delivery(self, each: int) -> DeliveryChunk:
        origins = [(origin, 5, int(origin in D)) for origin in sorted(self.direct[each])]
        return delivery(each, 20, origins) if each in D else indirect(each, 50, origins)

    @property
    def pairs(self) -> set[tuple[int, int, bool]]:
        return {(origin, each, (origin, each) in self.late) for each, of in self.direct.items() for origin in of}


@pytest.mark.parametrize("seed", range(30))
def test_direct_origins_in_both_directions(seed: int, tmp_path: Path) -> None:
    chance = Random(seed)
    truth = Truth(chance)
    with QuickWriter(tmp_path / "g.db") as writer:
        truth.write(writer, chance)
    with StoreReader(tmp_path / "g.db") as reader:
        every = [*S, *D, *K]
        asked = chance.sample(every, chance.randint(1, len(every)))
        assert set(reader.origins_of(asked)) == {pair for pair in truth.pairs if pair[1] in asked}
        assert set(reader.derived_of(asked)) == {pair for pair in truth.pairs if pair[0] in asked}
        kinds = {each: type(found) for each, found in reader.tuples([*every, 0]).items()}
        assert kinds == dict.fromkeys(S, Source) | dict.fromkeys(D, Sent) | dict.fromkeys(K, Sink)
        assert reader.origins_of([]) == reader.derived_of([0]) == []


def test_parts_of_a_sink_that_came_from_sent_tuples(tmp_path: Path) -> None:
    parts = [indirect(K[0], 50, [(D[0], 20, 1)], part=0x001), indirect(K[0], 50, [(S[1], 5, 0)], part=0x101)]
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        writer.write(
            graph_batch(
                "q",
                0,
                sinks={K[0]: 50},
                sources=dict.fromkeys(S[:2], 5),
                edges=[(K[0], S[0]), (K[0], S[1])],
                deliveries=[delivery(D[0], 20, [(S[0], 5, 0)]), *parts],
            )
        )
        assert [pair[:2] for pair in reader.origins_of([K[0]])] == [(S[1], K[0]), (D[0], K[0])]
        assert [pair[:2] for pair in reader.derived_of(S[:2])] == [(S[0], D[0]), (S[1], K[0])]
        assert reader.counters()["deliveries"] == 1, "a sink is no intermediate tuple"
        assert reader.intermediate(K[0]) is None


def test_retention_removes_direct_origins_in_both_directions(tmp_path: Path) -> None:
    with QuickWriter(tmp_path / "g.db") as writer, StoreReader(tmp_path / "g.db") as reader:
        writer.write(
            graph_batch(
                "q",
                0,
                sinks={K[0]: 50, K[1]: 150},
                sources={S[0]: 5, S[1]: 105},
                edges=[(K[0], S[0]), (K[1], S[1])],
                sink_labels=K[:2],
                source_labels=S[:1],
                deliveries=[
                    delivery(D[0], 20, [(S[0], 5, 0)]),
                    delivery(D[1], 120, [(S[1], 105, 0)]),
                    indirect(K[0], 50, [(D[0], 20, 1)]),
                    indirect(K[1], 150, [(D[1], 120, 1)]),
                ],
            )
        )
        writer.retain(100)
        left = [(S[1], D[1]), (D[1], K[1])]
        assert [pair[:2] for pair in reader.origins_of([*D, *K])] == left
        assert [pair[:2] for pair in reader.derived_of([*S, *D])] == left
        writer.retain(END_OF_TIME)
        for table in ("origin", "derived", "delivery"):
            assert reader._db.execute(f"SELECT count(*) FROM {table}_pages").fetchone() == (0,)


def test_a_store_that_knew_one_direction_only_learns_the_other(tmp_path: Path) -> None:
    path = tmp_path / "g.db"
    db = sqlite3.connect(path)
    for statements, _ in schema.STEPS[:2]:
        db.executescript(statements)
    db.execute(f"PRAGMA application_id={schema.APPLICATION_ID}")
    db.execute("PRAGMA user_version=2")
    pairs = [(each, origin) for each in D for origin in S]
    origins = columns([(*pair, 5, 0) for pair in pairs], "<i8", "<i8", "<i8", "<i8")
    starts = groups_of(origins[0] >> PAGE_BITS)
    fragments = zip((origins[0][starts] >> PAGE_BITS).tolist(), pack_groups(origins, starts), strict=True)
    db.executemany("INSERT INTO origin_pages (page, tier, tag, data) VALUES (?,0,1,?)", fragments)
    db.commit()
    db.close()
    StoreWriter(path).close()
    with StoreReader(path) as reader:
        assert [(each, origin) for origin, each, _ in reader.derived_of(S)] == sorted(
            pairs, key=lambda each: each[::-1]
        )
        assert [(each, origin) for origin, each, _ in reader.origins_of(D)] == sorted(
            pairs, key=lambda each: each[::-1]
        )
