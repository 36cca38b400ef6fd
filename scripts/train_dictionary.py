"""Train the dictionary that small batches are compressed with: protocol/wire/batch.dict.

It learns from bodies of typical batches, made up from a seed, so the same libraries always give the same bytes. What it
is worth is measured on batches that it has not seen: other seeds, other agents, other names of attributes.

The trainer of zstd looks for long pieces that many samples share, and single events have none. So the content is put
together here, piece by piece, each time the piece that makes the samples smallest for its length; zlib takes the whole
as it is. From zstd's trainer come the tables of probabilities that zstd wants in front of it.

    python -m scripts.train_dictionary            train (a minute), and say what it is worth
    python -m scripts.train_dictionary --show     what the dictionary that is there is worth
    python -m scripts.train_dictionary --sizes    dictionaries of 1 to 16 KB compared (minutes), nothing written
"""

from __future__ import annotations

import argparse
import functools
import heapq
import itertools
import random
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import zstandard

from edge_agent.outbox.giving_up import REASON
from edge_agent.outbox.recovery import CRASH
from edge_agent.stream import run
from protocol.records import Declared, End, Gap, Lost, Record, Status
from protocol.wire.compression import deflate, zstd_writer
from protocol.wire.packer import Packer
from protocol.wire.sections import EventKind, Kind, Pending, encode_sections, pending

DICTIONARY = Path(__file__).resolve().parent.parent / "protocol" / "wire" / "batch.dict"
SIZE_BYTES = 4096  # twice as much gains 4%, and costs every compression with zlib half as much again
SIZES_BYTES = (1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
SAMPLES = 40  # of each kind of batch
PIECE_BYTES, PIECE_COST_BYTES = 160, 8
REPEATED_OFFSETS = bytes((1, 0, 0, 0, 4, 0, 0, 0, 8, 0, 0, 0))  # end the tables of a dictionary of zstd
LEARNING, MEASURING = 1, 2
DAY_MS = 86_400_000

# Every query, the module with its source's generator, that generator, and arguments that keep a run short.
QUERIES: tuple[tuple[str, str, str, dict[str, int]], ...] = (
    ("linear_road_accidents", "linear_road", "reports", {"cars": 100, "rounds": 30}),
    ("linear_road_stopped", "linear_road", "reports", {"cars": 100, "rounds": 30}),
    ("smart_grid_anomaly", "smart_grid", "readings", {"meters": 40, "days": 6}),
    ("smart_grid_blackout", "smart_grid", "readings", {"meters": 40, "days": 6}),
    ("vehicle_tracking_highspeed", "vehicle_tracking", "fixes", {"cars": 20, "duration_s": 600}),
    ("vehicle_tracking_in_area", "vehicle_tracking", "fixes", {"cars": 20, "duration_s": 600}),
    ("object_annotation_crossings", "object_annotation", "frames", {"count": 400}),
    ("object_annotation_cycles", "object_annotation", "frames", {"count": 400}),
)
GROUPS = (1, 1, 2, 5, 10, 50)


@dataclass(frozen=True)
class Vocabulary:
    """How one kind of user calls things."""

    agents: tuple[str, ...]
    transformations: tuple[str, ...]
    tasks: tuple[str, ...]
    data_in: tuple[str, ...]
    data_out: tuple[str, ...]
    names_in: tuple[str, ...]
    names_out: tuple[str, ...]
    words: tuple[str, ...]


LEARNED = Vocabulary(
    agents=("car-7", "meter-12", "pump-1", "cam-3", "gateway-2"),
    transformations=("0", "1", "2", "3", "4", "train", "preprocess", "read", "filter", "aggregate"),
    tasks=("{t}-{n}", "{n}", "task_{n}", "{t}_{n}"),
    data_in=("in_{n}", "data_in_{n}", "input_{n}", "{n}"),
    data_out=("out_{n}", "data_out_{n}", "output_{n}", "{n}"),
    names_in=(
        *("temperature", "humidity", "pressure", "voltage", "current", "power", "speed", "latitude", "longitude"),
        *("timestamp", "sensor_id", "device", "learning_rate", "batch_size", "epochs", "model", "optimizer", "path"),
    ),
    names_out=(
        *("loss", "accuracy", "val_loss", "val_accuracy", "epoch", "time", "duration", "count", "mean", "max"),
        *("min", "sum", "error", "result", "value", "state", "status", "label", "score", "size"),
    ),
    words=("ok", "idle", "running", "finished", "failed", "adam", "sgd", "on", "off", "unknown"),
)
# Nothing but the listing's own ids is the same: what the dictionary is worth for a user whom nobody asked.
UNSEEN = Vocabulary(
    agents=("tower-19", "buoy-4", "silo-55"),
    transformations=("0", "1", "2", "calibrate", "fuse"),
    tasks=("{t}-{n}", "job:{n}"),
    data_in=("in_{n}", "raw/{n}"),
    data_out=("out_{n}", "clean/{n}"),
    names_in=("salinity", "turbidity", "depth", "wave_height", "wind_direction", "rainfall", "flow", "torque", "tilt"),
    names_out=("forecast", "residual", "quantile", "drift", "confidence", "kernel", "rank", "verdict", "updates"),
    words=("calm", "rough", "north", "south", "spring", "ebb"),
)


@dataclass
class Corpus:
    """Bodies of batches, by what they hold."""

    bodies: dict[str, list[bytes]] = field(default_factory=dict)

    def add(self, name: str, rows: list[Pending], agent: str, first_event: int = 0) -> None:
        self.bodies.setdefault(name, []).append(encode_sections(rows, agent, 0, first_event))


def corpus(seed: int, vocabulary: Vocabulary) -> Corpus:
    """Typical batches."""
    found = Corpus()
    dice = random.Random(seed)
    for data in ("paper", "small", "real"):
        for _ in range(40):
            _add_workflow(found, dice, vocabulary, data)
    for query, module, source, sizes in QUERIES:
        for agent in vocabulary.agents:
            _add_query(found, dice, agent, query, module, source, sizes | {"seed": dice.randrange(1_000_000)})
    for _ in range(100):
        _add_documents(found, dice, vocabulary)
    return found


def _clock_ms(dice: random.Random) -> int:
    """Some time in the years in which this will be used."""
    return 1_760_000_000_000 + dice.randrange(5 * 365) * DAY_MS + dice.randrange(DAY_MS)


def _grouped(rows: Iterable[Pending], dice: random.Random) -> Iterator[tuple[int, list[Pending]]]:
    """The rows as batches take them, each with the number of its first."""
    waiting, first = iter(rows), 0
    while group := list(itertools.islice(waiting, dice.choice(GROUPS))):
        yield first, group
        first += len(group)


def _label(kind: str, rows: list[Pending]) -> str:
    return f"{kind}, {'one' if len(rows) == 1 else '2 to 10' if len(rows) <= 10 else 'more'}"


def _add_workflow(found: Corpus, dice: random.Random, words: Vocabulary, data: str) -> None:
    """The events of ProvLight's Listing 1, with its data or with named values."""
    for first, group in _grouped(_listing1(dice, words, data), dice):
        found.add(_label(f"events, {data} data", group), group, "", first)


def _listing1(dice: random.Random, words: Vocabulary, data: str) -> Iterator[Pending]:
    packer = Packer()
    ts = _clock_ms(dice)
    task_id, id_in, id_out = (dice.choice(ids) for ids in (words.tasks, words.data_in, words.data_out))
    names_in = dice.sample(words.names_in, dice.randint(1, 8))
    names_out = dice.sample(words.names_out, dice.randint(1, 8))
    attributes = dice.choice((1, 10, 100))

    def value() -> Any:
        if data == "small":
            return dice.choice((dice.randrange(100), round(dice.uniform(0, 100), 1), dice.choice(words.words)))
        return dice.choice((dice.random(), dice.gauss(20, 5), dice.randrange(1_000), dice.choice(words.words)))

    def packed(paper: tuple[str, int], names: list[str]) -> tuple[Any, ...]:
        return packer.pack(
            {paper[0]: [paper[1]] * attributes} if data == "paper" else {each: value() for each in names}
        )

    yield (Kind.EVENT, EventKind.WORKFLOW_BEGUN, ts, 0, "1", None, (None,))
    previous: tuple[tuple[str, int], ...] = ()
    count = 0
    for transformation in dice.sample(words.transformations, 3):
        for number in range(dice.randint(2, 20)):
            count += 1
            this = task_id.format(t=transformation, n=number)
            ts += dice.randrange(20)
            item = (id_in.format(n=count), "1", (), *packed(("in", 1), names_in))
            yield (Kind.EVENT, EventKind.TASK_BEGUN, ts, count, 0, this, transformation, previous, (item,))
            ts += dice.randrange(5_000)
            sources = dice.choice(((), (item[0],)))
            item = (id_out.format(n=count), "1", sources, *packed(("out", 2), names_out))
            yield (Kind.EVENT, EventKind.TASK_ENDED, ts, count, 0, "", (item,))
            previous = ((this, count),)
    yield (Kind.EVENT, EventKind.WORKFLOW_ENDED, ts + 1, 0, 0, "")


def _add_query(
    found: Corpus, dice: random.Random, agent: str, query: str, module: str, source: str, sizes: dict[str, int]
) -> None:
    """Everything that a run of one of the queries tells, in batches."""
    generate: Callable[..., Iterator[tuple[int, Any]]] = getattr(import_module(f"edge_agent.queries.{module}"), source)
    plan = import_module(f"edge_agent.queries.{query}").build()
    since = _clock_ms(dice) // DAY_MS * DAY_MS
    records: list[Record] = []
    # A list: how often progress is told of a generator depends on how quickly its items come.
    items = [(since + ts, value) for ts, value in generate(**sizes)]
    run(plan, {source: items}, agent=agent, emit=records.append)
    packer = Packer()
    rows = (pending(record, packer) for record in records)
    for _, group in itertools.islice(_grouped(rows, dice), 60):
        found.add(_label("stream records", group), group, agent)
    found.add("plans", [pending(Declared(plan.document().to_json()), packer)], agent)


def _add_documents(found: Corpus, dice: random.Random, words: Vocabulary) -> None:
    packer, ts = Packer(), _clock_ms(dice)
    agent = dice.choice(words.agents)
    names = dice.sample(words.transformations, 3)
    sent = dice.randrange(100_000)
    link = {
        "state": "active",
        "round_trip_s": dice.uniform(0.001, 0.4),
        "sent": sent,
        "resent": dice.randrange(sent + 1) // 10,
        "reconnects": dice.randrange(5),
        "congestion": dice.randrange(5),
    }
    counts = {
        name: (dice.randrange(10**6), dice.randrange(10**5), dice.randrange(10), dice.randrange(10**4))
        for name in names
    }
    status = Status(ts, dice.randrange(50), dice.randrange(10**6), dice.randrange(20), 0, 0, link, counts)
    found.add("status", [pending(status, packer)], agent)
    first = dice.randrange(10_000)
    epoch, nonce = dice.randrange(20), dice.getrandbits(64)
    lost, last = (Lost(names[0], first, first + dice.randrange(1_000)),), first + dice.randrange(100)
    dropped = Gap(REASON, epoch, nonce, (first, last), lost, dice.choice((None, (first, last))))
    crashed = Gap(CRASH, epoch, nonce, progress=((names[1], ts, ts),), next_seqs=((names[2], first),), next_event=last)
    for gap in (dropped, crashed):
        found.add("gaps and ends", [pending(gap, packer)], agent)
    found.add("gaps and ends", [pending(End(ts), packer)], agent)


class Learner:
    """Chooses the content of dictionaries, best pieces first, and so knows the smaller ones on its way to a large one.

    Every kind of batch counts alike, however many bytes it makes: a single event is what a dictionary is for.
    """

    def __init__(self) -> None:
        dice = random.Random(LEARNING)
        self._samples: list[tuple[bytes, float]] = []
        self._tables: list[bytes] = []
        pieces: list[bytes] = []
        small = {kind: of for kind, of in corpus(LEARNING, LEARNED).bodies.items() if not kind.endswith("more")}
        for bodies in small.values():
            some = dice.sample(bodies, min(SAMPLES, len(bodies)))
            weight = 1 / sum(zlib_bytes(body, b"") for body in some)
            self._samples += [(body, weight) for body in some]
            for body in dice.sample(bodies, min(SAMPLES, len(bodies))):
                pieces += _pieces(body)
        self._pieces = list(dict.fromkeys(pieces))
        every: list[Any] = [
            body for bodies in small.values() for body in itertools.islice(itertools.cycle(bodies), 300)
        ]
        for size_bytes, segment_bytes in itertools.product((2048, 4096, 8192), (48, 200)):
            trained = zstandard.train_dictionary(size_bytes, every, k=segment_bytes, d=8, level=3, dict_id=1).as_bytes()
            self._tables.append(trained[: trained.index(REPEATED_OFFSETS) + len(REPEATED_OFFSETS)])

    def learn(self, *sizes: int) -> Iterator[bytes]:
        """Dictionaries of about these sizes, which go up."""
        content = b""
        cost = self._cost(content, zlib_bytes)
        # A piece's gain hardly ever grows as others are added, so only those that once gained most are tried again.
        gains = [(float("-inf"), place, -1) for place in range(len(self._pieces))]
        for size_bytes in sizes:
            for turn in itertools.count(len(content)):
                if len(content) + len(max(self._tables, key=len)) >= size_bytes:
                    break
                while True:
                    _, place, tried = heapq.heappop(gains)
                    piece = self._pieces[place]
                    if tried == turn:
                        break
                    gain = (cost - self._cost(piece + content, zlib_bytes)) / (len(piece) + PIECE_COST_BYTES)
                    heapq.heappush(gains, (-gain, place, turn))
                content = piece + content  # the best last: nearest to what is compressed
                cost = self._cost(content, zlib_bytes)
            yield min((tables + content for tables in self._tables), key=lambda each: self._cost(each, zstd_bytes))

    def _cost(self, dictionary: bytes, measure: Callable[[bytes, bytes], int]) -> float:
        return sum(measure(body, dictionary) * weight for body, weight in self._samples)


def _pieces(body: bytes) -> Iterator[bytes]:
    """A short body as it is, a longer one in overlapping parts."""
    if len(body) <= PIECE_BYTES:
        yield body
        return
    for at in range(0, len(body) - PIECE_BYTES // 4, PIECE_BYTES * 3 // 4):
        yield body[at : at + PIECE_BYTES]


def zstd_bytes(body: bytes, dictionary: bytes) -> int:
    """The body's size after zstd."""
    return len(_zstd(dictionary)(body))


_zstd = functools.lru_cache(8)(zstd_writer)


def zlib_bytes(body: bytes, dictionary: bytes) -> int:
    """The body's size after zlib."""
    return len(deflate(body, dictionary))


def worth(dictionary: bytes, vocabulary: Vocabulary) -> Iterator[tuple[str, list[float]]]:
    """Per kind of batch its mean size: as it is; zstd without and with the dictionary; zlib without and with it."""
    for name, bodies in sorted(corpus(MEASURING, vocabulary).bodies.items()):
        some = bodies[:: max(len(bodies) // 60, 1)]
        sizes = [sum(map(len, some))]
        for measure, known in itertools.product((zstd_bytes, zlib_bytes), (b"", dictionary)):
            sizes.append(sum(measure(body, known) for body in some))
        yield name, [size / len(some) for size in sizes]


def show(dictionary: bytes) -> None:
    """Tables of what it is worth."""
    print(f"{DICTIONARY.name}: {len(dictionary)} bytes")
    for title, vocabulary in (("names that it has learned", LEARNED), ("names that it has never seen", UNSEEN)):
        print(f"\nMean bytes of a batch, {title} (other values and times in both cases):")
        print(f"  {'':28} {'body':>7} {'zstd':>7} {'+ dict':>7} {'zlib':>7} {'+ dict':>7}")
        for name, sizes in worth(dictionary, vocabulary):
            print(f"  {name:28} " + " ".join(f"{size:7.0f}" for size in sizes))


def compare_sizes() -> None:
    """How many times smaller small batches become, by size of the dictionary: a geometric mean over their kinds."""
    print("  bytes     zstd, zlib: learned names     zstd, zlib: unseen names")
    for dictionary in Learner().learn(*SIZES_BYTES):
        gains = []
        for vocabulary in (LEARNED, UNSEEN):
            small = [sizes for name, sizes in worth(dictionary, vocabulary) if not name.endswith("more")]
            gains += [statistics.geometric_mean(sizes[at] / sizes[at + 1] for sizes in small) for at in (1, 3)]
        print(
            f"  {len(dictionary):5}     {gains[0]:11.2f} {gains[1]:11.2f}       {gains[2]:11.2f} {gains[3]:11.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--show", action="store_true", help="measure the dictionary that is there")
    parser.add_argument("--sizes", action="store_true", help="compare sizes of dictionaries, write nothing")
    arguments = parser.parse_args()
    if arguments.sizes:
        compare_sizes()
        return
    if not arguments.show:
        DICTIONARY.write_bytes(next(Learner().learn(SIZE_BYTES)))
    show(DICTIONARY.read_bytes())


if __name__ == "__main__":
    main()
