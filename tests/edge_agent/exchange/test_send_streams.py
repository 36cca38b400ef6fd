"""Send streams: tuples into crossings, promises that hold for each of them, and what happens when nobody takes them."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from edge_agent.config import Settings
from edge_agent.exchange.send_streams import SendStream
from edge_agent.spool import SpoolFull, SpoolUnwritable
from protocol.ids import StreamId
from protocol.mqttsn import MAX_UDP_PAYLOAD_BYTES
from protocol.records import BEGINNING, END_OF_TIME, Origin, OriginKind
from protocol.wire.crossing import Crossing, PackedTuple, decode_crossing, packed
from protocol.wire.packer import Packer
from tests.edge_agent.spool.folders import crashed

STREAM = StreamId("car-7", 1, "sums", 77)
AGE_S = 1.0
SMALL = 64 << 10


def stream_in(folder: Path, epoch: int = 1, **settings: Any) -> SendStream:
    return SendStream(
        StreamId("car-7", epoch, "sums", 76 + epoch), folder, Settings(batch_age_s=AGE_S, fsync="never", **settings)
    )


def tuples(numbers: Sequence[int], size_bytes: int = 0) -> list[PackedTuple]:
    """Tuples whose values cannot be compressed."""
    made = [
        (
            number,
            {"number": number, "noise": Random(number).randbytes(size_bytes)},
            Origin(OriginKind.REMOTE, STREAM, number, number),
        )
        for number in numbers
    ]
    return packed(made, Packer())


def crossings(send: SendStream) -> list[Crossing]:
    return [decode_crossing(entry.data, "car-7", "sums") for entry in send.spool.entries(send.spool.first)]


def numbers_in(written: Sequence[Crossing]) -> list[int]:
    return [ts for each in written for ts, _, _ in each.tuples]


def test_tuples_are_written_at_once_with_the_promise_after_them(tmp_path: Path) -> None:
    send = stream_in(tmp_path)
    send.add(tuples([1, 2]), 2, 1, True, now=0.0)
    assert send.waiting
    assert send.step(0.0) == float("inf")
    assert not send.waiting
    [crossing] = crossings(send)
    assert (crossing.stream, crossing.spool, crossing.seq) == (send.stream, send.spool_id, 0)
    assert (crossing.watermark, crossing.hold, crossing.idle, crossing.lost) == (2, 1, True, 0)
    assert [(ts, value["number"], origin.seq) for ts, value, origin in crossing.tuples] == [(1, 1, 1), (2, 2, 2)]


def test_what_follows_in_another_crossing_is_promised_nothing_new(tmp_path: Path) -> None:
    send = stream_in(tmp_path)
    send.add(tuples([5]), 5, 3, False, now=0.0)
    send.step(0.0)
    send.add(tuples(range(5, 25), 1_000), 100, 90, True, now=0.0)
    send.step(0.0)
    first, *parts, last = crossings(send)
    assert len(parts) > 2
    assert (
        {(part.watermark, part.hold, part.idle) for part in parts}
        == {(first.watermark, first.hold, False)}
        == {(5, 3, False)}
    )
    assert (last.watermark, last.hold, last.idle) == (100, 90, True)
    assert numbers_in([first, *parts, last]) == [5, *range(5, 25)]
    assert [each.seq for each in crossings(send)] == list(range(len(parts) + 2))


def test_before_anything_was_promised_parts_promise_nothing(tmp_path: Path) -> None:
    send = stream_in(tmp_path)
    send.add(tuples(range(10), 1_000), END_OF_TIME, END_OF_TIME, False, now=0.0)
    send.step(0.0)
    *parts, last = crossings(send)
    assert {(part.watermark, part.hold) for part in parts} == {(BEGINNING, BEGINNING)}
    assert last.watermark == END_OF_TIME


def test_a_promise_alone_waits_for_company_as_long_as_a_batch(tmp_path: Path) -> None:
    send = stream_in(tmp_path)
    send.add([], 10, 10, False, now=5.0)
    assert send.step(5.0) == 5.0 + AGE_S
    send.add([], 20, 20, False, now=5.5)
    assert send.step(5.5) == 5.0 + AGE_S
    assert not crossings(send) and send.waiting
    assert send.step(5.0 + AGE_S) == float("inf")
    assert [each.watermark for each in crossings(send)] == [20]


def test_a_promise_that_was_given_is_not_given_again(tmp_path: Path) -> None:
    send = stream_in(tmp_path)
    for _ in range(2):
        send.add([], 10, 10, False, now=0.0)
        send.step(AGE_S)
    assert len(crossings(send)) == 1
    send.add([], 10, 10, True, now=2.0)  # but that it need not be waited for is news
    send.step(2.0 + AGE_S)
    assert [each.idle for each in crossings(send)] == [False, True]


def test_in_a_hurry_a_promise_leaves_at_once_and_nothing_else_does(tmp_path: Path) -> None:
    send = stream_in(tmp_path)
    assert send.step(0.0, hurry=True) == float("inf")
    assert not crossings(send)
    send.add([], 10, 10, False, now=0.0)
    send.step(0.0, hurry=True)
    assert [each.watermark for each in crossings(send)] == [10]


def test_a_restart_goes_on_counting(tmp_path: Path) -> None:
    send = stream_in(tmp_path)
    send.add(tuples([1]), 1, 1, False, now=0.0)
    send.step(0.0)
    send.close()
    again = stream_in(tmp_path, epoch=2)
    again.add(tuples([2]), 2, 2, False, now=0.0)
    again.step(0.0)
    assert again.spool_id == send.spool_id
    assert [(each.seq, each.stream.epoch, numbers_in([each])) for each in crossings(again)] == [
        (0, 1, [1]),
        (1, 2, [2]),
    ]


def test_numbers_go_on_when_everything_was_taken(tmp_path: Path) -> None:
    send = stream_in(tmp_path)
    send.add(tuples([1]), 1, 1, False, now=0.0)
    send.step(0.0)
    send.spool.release(0)
    send.close()
    again = stream_in(tmp_path, epoch=2)
    again.add(tuples([2]), 2, 2, False, now=0.0)
    again.step(0.0)
    assert [each.seq for each in crossings(again)] == [1]


@pytest.mark.parametrize("harm", ["deleted", "damaged"])
def test_without_the_old_folder_the_numbers_are_others(tmp_path: Path, harm: str) -> None:
    send = stream_in(tmp_path)
    send.close()
    [folder] = tmp_path.glob("send-*")
    if harm == "deleted":
        shutil.rmtree(folder)
    else:
        (folder / "id").write_text("no number")
    again = stream_in(tmp_path)
    assert again.spool_id != send.spool_id
    again.add(tuples([1]), 1, 1, False, now=0.0)
    again.step(0.0)
    again.close()
    assert stream_in(tmp_path).spool_id == again.spool_id


def test_entries_know_what_their_numbers_count_in_when_the_file_is_lost(tmp_path: Path) -> None:
    send = stream_in(tmp_path)
    send.add(tuples([1]), 1, 1, False, now=0.0)
    send.step(0.0)
    send.close()
    [file] = tmp_path.glob("send-*/id")
    file.unlink()
    again = stream_in(tmp_path)
    assert again.spool_id == send.spool_id == crossings(again)[0].spool


def test_a_full_disk_does_not_keep_a_send_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", refuse)
        send = stream_in(tmp_path)
        assert "No space left" in send.trouble
        with pytest.raises(SpoolUnwritable, match="No space left"):
            send.add(tuples([1]), 1, 1, False, now=0.0)
        assert not send.waiting, "it was not taken"
    send.add(tuples([1]), 1, 1, False, now=0.0)
    assert not send.trouble
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", refuse)
        assert send.step(0.0) == 1.0, "it tries again"
        assert "No space left" in send.trouble
        assert crossings(send) == []
    send.step(1.0)
    assert not send.trouble
    assert numbers_in(crossings(send)) == [1]
    send.close()
    assert stream_in(tmp_path).spool_id == send.spool_id


def test_the_folder_of_a_stream_is_safe_before_anything_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may take a folder as a whole, whatever was synced in it, and the numbers would begin again."""
    synced: list[Path] = []
    real = os.fsync

    def sync(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path == tmp_path and not synced:
            synced.append(path)
            raise OSError(errno.EIO, "broken")
        synced.append(path)
        real(fd)

    monkeypatch.setattr(os, "fsync", sync)
    send = stream_in(tmp_path)
    assert "broken" in send.trouble
    assert synced == [tmp_path] and not send.spool.is_synced, "nothing leaves"
    assert send.step(0.0) == float("inf")
    assert synced == [tmp_path, tmp_path, tmp_path / "send-sums"] and send.spool.is_synced
    assert crossings(send) == [], "there is nothing new to be said"
    synced.clear()
    send.add(tuples([1]), 1, 1, False, now=0.0)
    send.step(0.0)
    assert tmp_path not in synced, "once is enough"
    again = stream_in(crashed(tmp_path))
    assert Path(again._parent) in synced, "the process that made it may have been killed before that"


def test_streams_of_any_name_have_folders_of_their_own(tmp_path: Path) -> None:
    names = ["a/b", "a%2Fb", "..", "Größe", "x y"]
    sends = [SendStream(StreamId("car-7", 1, name, 77), tmp_path, Settings()) for name in names]
    assert len({send.spool_id for send in sends}) == len(list(tmp_path.iterdir())) == len(names)


@pytest.mark.parametrize("batch_bytes", [64, 1_200, 32 << 10])
def test_a_crossing_fits_into_a_datagram_even_if_nothing_can_be_compressed(tmp_path: Path, batch_bytes: int) -> None:
    send = stream_in(tmp_path, batch_bytes=batch_bytes)
    send.add(tuples(range(20), 15_000), 20, 20, False, now=0.0)
    send.add(tuples(range(20, 4_000)), 4_000, 4_000, False, now=0.0)
    send.step(0.0)
    sizes = [len(entry.data) for entry in send.spool.entries(0)]
    assert max(sizes) < MAX_UDP_PAYLOAD_BYTES - 1_000
    assert numbers_in(crossings(send)) == list(range(4_000))


def test_a_full_spool_gives_up_its_oldest_crossings_and_says_how_many_tuples_they_had(tmp_path: Path) -> None:
    told: list[int] = []
    send = stream_in(tmp_path, spool_bytes=SMALL, when_full="drop-oldest")
    send.given_up = lambda: told.append(send.spool.count)
    send.add(tuples(range(200), 1_000), 200, 150, False, now=0.0)
    send.step(0.0)
    stand_in, *kept = crossings(send)
    assert not send.waiting and not send.trouble
    assert not stand_in.tuples
    assert stand_in.lost == send.lost > 100
    assert numbers_in(kept) == list(range(stand_in.lost, 200))
    assert [each.seq for each in kept] == list(range(stand_in.seq + 1, stand_in.seq + 1 + len(kept)))
    assert told, "what is in flight of them is history"
    assert kept[-1].watermark == 200


def test_what_was_lost_is_not_forgotten_when_more_is(tmp_path: Path) -> None:
    send = stream_in(tmp_path, spool_bytes=SMALL, when_full="drop-oldest")
    for start in range(0, 240, 80):
        send.add(tuples(range(start, start + 80), 1_000), start, start, False, now=0.0)
        send.step(0.0)
    stand_in, *kept = crossings(send)
    assert numbers_in(kept) == list(range(stand_in.lost, 240))


def test_a_full_spool_that_blocks_keeps_everything_and_goes_on_when_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    send = stream_in(tmp_path, spool_bytes=SMALL, when_full="block")
    send.add(tuples(range(100), 1_000), 100, 90, False, now=0.0)
    with caplog.at_level(logging.WARNING):
        assert send.step(0.0) == 1.0
        send.step(0.5)
        send.step(1.0)
    assert len(caplog.records) == 1, "said once"
    assert send.waiting and "would exceed" in send.trouble
    kept = crossings(send)
    assert {each.watermark for each in kept} == {BEGINNING}, "more is to come"
    found = numbers_in(kept)
    now = 1.0
    while send.waiting:
        send.spool.release(send.spool.next - 1)
        now += 1.0
        send.step(now)
        found += numbers_in(crossings(send))
    assert found == list(range(100))
    assert not send.trouble and crossings(send)[-1].watermark == 100


def test_what_was_written_before_the_spool_was_full_is_synced_before_it_leaves(tmp_path: Path) -> None:
    send = stream_in(tmp_path, spool_bytes=SMALL, when_full="block")
    send.add(tuples(range(30), 4000), 29, 29, False, now=0.0)
    send.step(0.0)
    assert send.trouble and numbers_in(crossings(send)), "some of it fits"
    assert send.spool.is_synced


def test_what_a_killed_process_has_left_is_synced_before_it_leaves(tmp_path: Path) -> None:
    send = stream_in(tmp_path)
    send.add(tuples([1]), 1, 1, False, now=0.0)
    send.step(0.0)
    assert stream_in(crashed(tmp_path)).spool.is_synced


def test_while_there_is_no_room_nothing_more_is_taken(tmp_path: Path) -> None:
    send = stream_in(tmp_path, spool_bytes=SMALL, when_full="block")
    send.add(tuples(range(100), 1_000), 100, 90, False, now=0.0)
    send.step(0.0)
    with pytest.raises(SpoolFull):
        send.add(tuples([100]), 101, 101, False, now=0.1)
    send.spool.release(send.spool.next - 1)
    send.add(tuples([100]), 101, 101, False, now=0.2)
    assert not send.trouble
    send.step(0.2)
    assert crossings(send)[-1].watermark == 101
    assert numbers_in(crossings(send))[-1] == 100


def test_what_comes_faster_than_it_is_asked_to_write_is_written_anyway(tmp_path: Path) -> None:
    send = stream_in(tmp_path)
    for start in (0, 11_000):
        send.add(tuples(range(start, start + 11_000)), start, start, False, now=0.0)
    assert numbers_in(crossings(send)) == list(range(11_000))
    send.step(0.0)
    assert numbers_in(crossings(send)) == list(range(22_000))


def test_tuples_that_were_never_added_are_told_with_the_next_crossing(tmp_path: Path) -> None:
    send = stream_in(tmp_path)
    send.forgo(0)
    assert not send.waiting
    send.forgo(3)
    send.forgo(4)
    assert send.waiting
    send.step(0.0)
    assert not send.waiting
    send.add(tuples([8]), 8, 8, False, now=0.0)
    send.step(0.0)
    assert [(each.lost, len(each.tuples)) for each in crossings(send)] == [(7, 0), (0, 1)]
    assert send.lost == 7


def test_what_was_not_added_is_not_forgotten_while_the_spool_is_full(tmp_path: Path) -> None:
    send = stream_in(tmp_path, spool_bytes=SMALL, when_full="block")
    send.add(tuples(range(100), 1_000), 1, 1, False, now=0.0)
    send.step(0.0)
    send.forgo(5)
    send.step(2.0)
    assert send.trouble and send.waiting
    assert sum(each.lost for each in crossings(send)) == 0
    send.spool.release(send.spool.next - 1)
    send.step(9.0)
    assert sum(each.lost for each in crossings(send)) == 5
    assert numbers_in(crossings(send))[-1] == 99


def test_what_is_no_crossing_does_not_keep_a_full_spool_from_giving_up_others(tmp_path: Path) -> None:
    send = stream_in(tmp_path, spool_bytes=SMALL, batch_bytes=1_200)
    send.spool.append(b"\x01")
    for number in range(200):
        send.add(tuples([number], 900), number, number, False, now=0.0)
        send.step(0.0)
    assert send.spool.lost == [range(1)]
    assert send.lost + len(numbers_in(crossings(send))) == 200
    send.close()
