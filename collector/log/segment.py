"""A segment file: an Arrow IPC stream without an end marker, one record batch per commit, the first is the snapshot.

Any Arrow reader can read it. Ours passes over record batches that it does not want by their headers alone: of each
header (a flatbuffer) it needs little more than the number of rows and the length of the body, so it reads just these.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.ipc

from collector.log.errors import LogDamaged
from collector.log.row import check_of
from protocol.row import Row

ROW_SCHEMA = pa.schema(
    [
        pa.field("kind", pa.uint8(), nullable=False),
        pa.field("agent", pa.string(), nullable=False),
        pa.field("nonce", pa.uint64(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("data", pa.binary(), nullable=False),
    ]
)
_CHECK = pa.field("check", pa.uint32(), nullable=False)
SEGMENT_SCHEMA = ROW_SCHEMA.append(_CHECK)
HEADER: bytes = SEGMENT_SCHEMA.serialize().to_pybytes()
"""What a segment begins with."""

_CONTINUATION = 0xFFFFFFFF
_PREFIX = struct.Struct("<Ii")
_PROBE_BYTES = 1024  # holds the header of a record batch, as a rule
_MOST_METADATA_BYTES = 1 << 20
# Slots and numbers of the Arrow format (Message.fbs).
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_LENGTH, _BUFFERS, _COMPRESSION = 0, 2, 3
_RECORD_BATCH = 3
_DATA_VALUES = 11  # the buffer with the bytes of `data`, counted over all columns


class Frame(NamedTuple):
    """Where a record batch is within its segment, and which rows it holds."""

    offset: int
    size_bytes: int
    row: int
    rows: int
    data_at: int
    data_stored_bytes: int
    compressed: bool

    @property
    def end(self) -> int:
        """Behind its last byte."""
        return self.offset + self.size_bytes

    @property
    def end_row(self) -> int:
        """Behind its last row."""
        return self.row + self.rows


class Bookmark(NamedTuple):
    """A place between two record batches: its byte, and how many rows are before it."""

    offset: int
    row: int


def encoded(rows: Sequence[Row], checks: Sequence[int], compression: str | None) -> bytes:
    """A record batch, as it is appended to a segment."""
    columns = list(zip(*rows, strict=True)) or [()] * len(ROW_SCHEMA)
    arrays = [pa.array(column, kind) for column, kind in zip([*columns, checks], SEGMENT_SCHEMA.types, strict=True)]
    sink = pa.BufferOutputStream()
    # Of a few small columns, what other threads could take over is less than what it takes to ask them.
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    writer = pa.ipc.new_stream(sink, SEGMENT_SCHEMA, options=options)
    writer.write_batch(pa.record_batch(arrays, schema=SEGMENT_SCHEMA))
    stream: bytes = sink.getvalue().slice(len(HEADER)).to_pybytes()
    return stream


class Segment:
    """A segment open for reading."""

    def __init__(self, path: Path) -> None:
        """FileNotFoundError if it is not there."""
        self.path = path
        with _unreadable_told(path):
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> Segment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._handle)

    @property
    def identity(self) -> tuple[str, int, int]:
        """Which file it is: another one may have its name later, or its place."""
        found = os.fstat(self._handle)
        return str(self.path), found.st_dev, found.st_ino

    @property
    def size_bytes(self) -> int:
        """How long the file is now."""
        return os.fstat(self._handle).st_size

    def frames(self, after: Bookmark | None = None) -> Iterator[Frame]:
        """All record batches up to the end of the file, or those behind a place between two of them; LogDamaged where
        something else stands.

        Looks at no more bytes than the frames that are taken from it need.
        """
        offset, row = after or (self._behind_header(), 0)
        while (prefix := self._read(offset, _PROBE_BYTES)) != b"":
            frame = self._frame(offset, row, prefix)
            yield frame
            offset, row = frame.end, frame.end_row

    def rows(self, frame: Frame) -> list[Row]:
        """The rows of a record batch, every one as it was appended."""
        return self._sound(frame)[1]

    def batch(self, frame: Frame) -> Any:
        """The record batch itself, every row as it was appended."""
        return self._sound(frame)[0]

    def judged(self, frame: Frame) -> tuple[Any, list[Row], list[int]]:
        """A record batch, its rows, and which of them are not as they were appended."""
        content = self._read(frame.offset, frame.size_bytes)
        try:
            message = pa.ipc.read_message(pa.py_buffer(content))
            batch = pa.ipc.read_record_batch(message, SEGMENT_SCHEMA)
            batch.validate(full=True)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise self._damaged(frame.offset, frame.row, f"{error}".partition("\n")[0]) from error
        if batch.num_rows != frame.rows or any(column.null_count for column in batch.columns):
            raise self._damaged(frame.offset, frame.row, "values are missing")
        *columns, checks = [column.to_pylist() for column in batch.columns]
        rows = [Row(*fields) for fields in zip(*columns, strict=True)]
        return batch, rows, [number for number, row in enumerate(rows) if check_of(row) != checks[number]]

    def _sound(self, frame: Frame) -> tuple[Any, list[Row]]:
        batch, rows, wrong = self.judged(frame)
        if wrong:
            raise self._damaged(frame.offset, frame.row + wrong[0], "wrong check")
        return batch, rows

    def data_bytes(self, frame: Frame) -> int:
        """How many bytes the rows' data are, without reading them."""
        if not frame.compressed:
            return frame.data_stored_bytes
        # A compressed buffer begins with its length as it was; -1 says that it stands there as it was.
        (length,) = struct.unpack("<q", self._read(frame.data_at, 8).ljust(8, b"\0"))
        return int(length) if length >= 0 else frame.data_stored_bytes - 8

    def _read(self, offset: int, size_bytes: int) -> bytes:
        with _unreadable_told(self.path):
            content = os.pread(self._handle, size_bytes, offset)
            while 0 < len(content) < size_bytes and (
                more := os.pread(self._handle, size_bytes - len(content), offset + len(content))
            ):
                content += more
        return content

    def _behind_header(self) -> int:
        content = self._read(0, len(HEADER))
        if content == HEADER:
            return len(HEADER)
        try:  # another version of the library may lay out the same schema otherwise
            continuation, length = _PREFIX.unpack_from(content)
            end = int(_PREFIX.size + length)
            if continuation != _CONTINUATION or not 0 < length < _MOST_METADATA_BYTES:
                raise self._damaged(0, 0, "no Arrow stream begins here")
            schema = pa.ipc.read_schema(pa.py_buffer(self._read(0, end)))
            names = schema.names
        except (struct.error, pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
            raise self._damaged(0, 0, "no Arrow stream begins here") from error
        if not schema.equals(SEGMENT_SCHEMA):
            raise OtherSchema(f"{self.path}: columns are {names} of {schema.types}: not a segment of this version")
        return end

    def _frame(self, offset: int, row: int, prefix: bytes) -> Frame:
        try:
            continuation, length = _PREFIX.unpack_from(prefix)
            if continuation != _CONTINUATION or not 0 < length < _MOST_METADATA_BYTES:
                raise self._damaged(offset, row, "no record batch begins here")
            head_bytes = _PREFIX.size + length
            head = prefix[:head_bytes] if len(prefix) >= head_bytes else self._read(offset, head_bytes)
            metadata = memoryview(head)[_PREFIX.size :]
            message = _unsigned(metadata, 0)
            if metadata[_place(metadata, message, _HEADER_TYPE)] != _RECORD_BATCH:
                raise self._damaged(offset, row, "not a record batch")
            body_bytes = _signed_long(metadata, _place(metadata, message, _BODY_LENGTH))
            batch = _place(metadata, message, _HEADER)
            batch += _unsigned(metadata, batch)
            length_at = _place(metadata, batch, _LENGTH, default=True)
            rows = _signed_long(metadata, length_at) if length_at else 0
            buffers = _place(metadata, batch, _BUFFERS)
            buffers += _unsigned(metadata, buffers)
            buffer = buffers + 4 + 16 * _DATA_VALUES  # behind the vector's length; 16 bytes each
            data_at, data_bytes = _signed_long(metadata, buffer), _signed_long(metadata, buffer + 8)
            compressed = _place(metadata, batch, _COMPRESSION, default=True) != 0
        except (struct.error, IndexError) as error:
            raise self._damaged(offset, row, "the header of the record batch is broken") from error
        frame = Frame(offset, head_bytes + body_bytes, row, rows, offset + head_bytes + data_at, data_bytes, compressed)
        if rows < 0 or body_bytes < 0 or frame.end > self.size_bytes:
            raise self._damaged(offset, row, "the record batch is not whole")
        return frame

    def _damaged(self, offset: int, row: int, why: str) -> LogDamaged:
        return LogDamaged(f"{self.path}: byte {offset}, row {row}: {why}")


class OtherSchema(LogDamaged):
    """A sound segment, but of another version: never to be repaired."""


class SegmentUnreadable(LogDamaged):
    """No file, or one that the disk does not give: never to be repaired, as all of it may still be there."""


@contextmanager
def _unreadable_told(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SegmentUnreadable(f"{path} cannot be read: {error.strerror}") from error


def _unsigned(buffer: memoryview, at: int) -> int:
    return int(struct.unpack_from("<I", buffer, at)[0])


def _signed_long(buffer: memoryview, at: int) -> int:
    return int(struct.unpack_from("<q", buffer, at)[0])


def _place(buffer: memoryview, table: int, slot: int, *, default: bool = False) -> int:
    """Where the field of a flatbuffer's table is; 0 if it was left out, which only a field with a default may be."""
    vtable = table - int(struct.unpack_from("<i", buffer, table)[0])
    if vtable < 0:
        raise IndexError(vtable)
    (vtable_bytes,) = struct.unpack_from("<H", buffer, vtable)
    entry = 4 + 2 * slot
    offset = int(struct.unpack_from("<H", buffer, vtable + entry)[0]) if entry < vtable_bytes else 0
    if not offset and not default:
        raise IndexError(slot)
    return table + offset if offset else 0
