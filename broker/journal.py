"""What survives a crash of the gateway: persistent sessions, their topic ids, subscriptions and waiting messages.

The machine writes through the `Journal` interface; the shell commits before it lets any answer out, so a client never
holds an acknowledgement the gateway could forget. `SqliteJournal` commits to a write-ahead log without waiting for
the disk: a killed process loses nothing, a power cut at most the last moments. What a full disk does not take is kept
in memory and tried again.
"""

from __future__ import annotations

import fcntl
import json
import logging
import secrets
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from broker.outputs import Peer
from broker.session import Leg, Outgoing, Session, State, Subscription, Will
from protocol import table_sums
from protocol.database_faults import faults
from protocol.mqttsn import RetryPolicy
from protocol.table_sums import SummingConnection, sum_up

log = logging.getLogger(__name__)


class Journal:
    """Where the machine notes what must survive. This one keeps nothing: for a gateway without a state folder."""

    keeps = False

    def __init__(self) -> None:
        self.identity = f"tl-gw-{secrets.token_hex(4)}"
        """The gateway's own name: the MQTT session that keeps its messages belongs to it."""
        self.has_news = False
        """Something was noted since `commit` was last tried."""

    @property
    def unwritten(self) -> int:
        """Changes that were noted and are not in the journal yet."""
        return 0

    def commit(self) -> bool:
        """Write down all that was noted. False: the disk does not take it now, it is kept for the next time."""
        return True

    def put_off(self) -> None:
        """Do not even try to write now: what was noted is kept for the next `commit`."""
        self.has_news = False

    def close(self) -> None: ...
    def save_session(self, session: Session) -> None: ...
    def delete_session(self, client_id: str) -> None: ...
    def save_topic(self, client_id: str, topic_id: int, name: str) -> None: ...
    def save_subscription(self, client_id: str, topic_filter: str, qos: int) -> None: ...
    def delete_subscription(self, client_id: str, topic_filter: str) -> None: ...
    def save_message(self, client_id: str, message: Outgoing) -> None: ...
    def release_message(self, client_id: str, seq: int) -> None: ...
    def delete_message(self, client_id: str, seq: int) -> None: ...
    def save_announcement(self, client_id: str, state: str) -> None: ...
    def delete_announcement(self, client_id: str) -> None: ...
    def save_filter(self, number: int, topic_filter: str) -> None: ...
    def delete_filter(self, topic_filter: str) -> None: ...
    def save_received(self, mid: int, digest: bytes) -> None: ...
    def forget_received(self) -> None: ...

    def sessions(self, now: float, policy: RetryPolicy) -> Iterator[Session]:
        """The persistent sessions as they were, with what waits for their clients."""
        return iter(())

    def announcements(self) -> dict[str, str]:
        """The last state told of each client."""
        return {}

    def filters(self) -> dict[int, str]:
        """Every filter the gateway's MQTT session may still be subscribed to."""
        return {}

    def last_filter_id(self) -> int:
        """The highest number ever given: none is given again, messages with the old meaning may still come."""
        return 0

    def received(self) -> dict[int, bytes]:
        """The broker's messages that are in the journal: message id -> digest."""
        return {}


class StateUnusable(RuntimeError):
    """The state folder cannot be used; the text says why and what to do."""


_SKIP = 256
"""Message ids passed over after a restart: the client may remember what was just delivered under those."""
_SCHEMA_VERSION = 2
_TABLES = ("session", "topic", "subscription", "message", "announcement", "filter", "inbox", "identity")
_SCHEMA = """
CREATE TABLE session (
    client_id TEXT PRIMARY KEY, keep_alive_s REAL, state TEXT, sleep_s REAL, address TEXT, route TEXT,
    will_topic TEXT, will_qos INTEGER, will_retain INTEGER, will_payload BLOB) WITHOUT ROWID;
CREATE TABLE topic (client_id TEXT, topic_id INTEGER, name TEXT, PRIMARY KEY (client_id, topic_id)) WITHOUT ROWID;
CREATE TABLE subscription (client_id TEXT, filter TEXT, qos INTEGER, PRIMARY KEY (client_id, filter)) WITHOUT ROWID;
CREATE TABLE message (
    client_id TEXT, seq INTEGER, topic TEXT, payload BLOB, qos INTEGER, retain INTEGER, released INTEGER,
    PRIMARY KEY (client_id, seq));
CREATE TABLE announcement (client_id TEXT PRIMARY KEY, state TEXT) WITHOUT ROWID;
CREATE TABLE filter (id INTEGER PRIMARY KEY AUTOINCREMENT, filter TEXT UNIQUE);
CREATE TABLE inbox (mid INTEGER PRIMARY KEY, digest BLOB);
CREATE TABLE identity (name TEXT);
"""


class SqliteJournal(Journal):
    """The journal in one SQLite file; the folder is locked for the life of the process."""

    keeps = True

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        # A statement and the row that it is about, with all its values: what is noted again takes the place of what was
        # noted before, so that a disk that takes nothing for hours does not fill the memory.
        self._unwritten: dict[tuple[str, tuple[Any, ...]], tuple[Any, ...]] = {}
        self._is_failing = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(folder / "lock")
            self._db = sqlite3.connect(folder / "gateway.sqlite3", isolation_level=None, factory=SummingConnection)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._prepare(folder)
            self.identity = str(self._read("SELECT name FROM identity")[0][0])
        except OSError as error:
            raise StateUnusable(f"state folder {folder}: {error.strerror or error}") from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # even what SQLite says may be no text then
            raise self._unusable(error) from error

    def _prepare(self, folder: Path) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > _SCHEMA_VERSION:
            raise StateUnusable(f"state folder {folder}: written by another version ({version}) of the gateway")
        if version < _SCHEMA_VERSION:
            self._db.execute("BEGIN IMMEDIATE")
            if version == 0:
                for statement in _SCHEMA.split(";"):
                    self._db.execute(statement)
                self._db.execute("INSERT INTO identity VALUES (?)", (self.identity,))
            self._db.execute(table_sums.SCHEMA)
            sum_up(self._db, _TABLES)
            self._db.execute(f"PRAGMA user_version={_SCHEMA_VERSION}")
            self._db.execute("COMMIT")
        for wrong in faults(self._db, _SCHEMA + table_sums.SCHEMA, _TABLES):
            raise StateUnusable(
                f"state folder {folder}: gateway.sqlite3 is damaged ({wrong}): move it away to start with no sessions"
            )
        self._db.watch(_TABLES)

    @property
    def unwritten(self) -> int:
        return len(self._unwritten)

    def commit(self) -> bool:
        self.has_news = False
        if not self._unwritten:
            return True
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for (statement, _), values in self._unwritten.items():
                self._db.execute(statement, values)
            self._db.store_sums()
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._db.forget_changes()
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if not self._is_failing:
                log.error("state cannot be written; devices are told of congestion until it can error=%s", error)
            self._is_failing = True
            return False
        self._unwritten.clear()
        if self._is_failing:
            log.info("state is written again")
            self._is_failing = False
        return True

    def close(self) -> None:
        self.commit()
        self._db.close()
        self._lock.close()

    def _read(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> StateUnusable:
        return StateUnusable(
            f"state folder {self._folder}: gateway.sqlite3: {error}; "
            "if the disk is not full, move the file away to start with no sessions"
        )

    def _write(self, statement: str, *values: Any, key: int | None = None) -> None:
        """The first `key` values say which row it is, or all of them."""
        change = statement, values[:key]
        self._unwritten.pop(change, None)  # it goes to the end: in between, the row may have been written otherwise
        self._unwritten[change] = values
        self.has_news = True

    def save_session(self, session: Session) -> None:
        will = session.will
        address, route = session.peer
        self._write(
            "INSERT OR REPLACE INTO session VALUES (?,?,?,?,?,?,?,?,?,?)",
            session.client_id,
            session.keep_alive_s,
            session.state.name,
            session.sleep_s,
            json.dumps(address),
            json.dumps([node.hex() for node in route]),
            will and will.topic,
            will and will.qos,
            will and will.retain,
            will and will.payload,
            key=1,
        )

    def delete_session(self, client_id: str) -> None:
        for table in ("session", "topic", "subscription", "message"):
            self._write(f"DELETE FROM {table} WHERE client_id=?", client_id)

    def save_topic(self, client_id: str, topic_id: int, name: str) -> None:
        self._write("INSERT OR REPLACE INTO topic VALUES (?,?,?)", client_id, topic_id, name, key=2)

    def save_subscription(self, client_id: str, topic_filter: str, qos: int) -> None:
        self._write("INSERT OR REPLACE INTO subscription VALUES (?,?,?)", client_id, topic_filter, qos, key=2)

    def delete_subscription(self, client_id: str, topic_filter: str) -> None:
        self._write("DELETE FROM subscription WHERE client_id=? AND filter=?", client_id, topic_filter)

    def save_message(self, client_id: str, message: Outgoing) -> None:
        self._write(
            "INSERT OR REPLACE INTO message VALUES (?,?,?,?,?,?,0)",
            client_id,
            message.seq,
            message.topic,
            message.payload,
            message.qos,
            message.retain,
            key=2,
        )

    def release_message(self, client_id: str, seq: int) -> None:
        """The client has the message (QoS 2): from now on only its release is sent."""
        self._write("UPDATE message SET released=1 WHERE client_id=? AND seq=?", client_id, seq)

    def delete_message(self, client_id: str, seq: int) -> None:
        self._write("DELETE FROM message WHERE client_id=? AND seq=?", client_id, seq)

    def save_announcement(self, client_id: str, state: str) -> None:
        self._write("INSERT OR REPLACE INTO announcement VALUES (?,?)", client_id, state, key=1)

    def delete_announcement(self, client_id: str) -> None:
        self._write("DELETE FROM announcement WHERE client_id=?", client_id)

    def announcements(self) -> dict[str, str]:
        return dict(self._read("SELECT client_id, state FROM announcement"))

    def save_filter(self, number: int, topic_filter: str) -> None:
        """The subscription identifier of a filter stays the same after a restart: queued messages carry it."""
        self._write("INSERT OR REPLACE INTO filter VALUES (?,?)", number, topic_filter)

    def last_filter_id(self) -> int:
        rows = self._read("SELECT seq FROM sqlite_sequence WHERE name='filter'")
        return int(rows[0][0]) if rows else 0

    def filters(self) -> dict[int, str]:
        return dict(self._read("SELECT id, filter FROM filter"))

    def delete_filter(self, topic_filter: str) -> None:
        self._write("DELETE FROM filter WHERE filter=?", topic_filter)

    def save_received(self, mid: int, digest: bytes) -> None:
        """Note that the message the broker calls `mid` is in the journal, should the broker send it again."""
        self._write("INSERT OR REPLACE INTO inbox VALUES (?,?)", mid, digest, key=1)

    def forget_received(self) -> None:
        """The broker has begun anew, and so have its message ids."""
        self._write("DELETE FROM inbox")

    def received(self) -> dict[int, bytes]:
        return dict(self._read("SELECT mid, digest FROM inbox"))

    def sessions(self, now: float, policy: RetryPolicy) -> Iterator[Session]:
        for client_id, keep_alive_s, state, sleep_s, address, route, *will in self._read("SELECT * FROM session"):
            session = Session(
                client_id=client_id,
                peer=_peer(address, route),
                clean=False,
                keep_alive_s=keep_alive_s,
                last_heard=now,
                state=State[state],
                sleep_s=sleep_s,
                confirmed=True,
                will=Will(will[0], will[1], bool(will[2]), will[3]) if will[0] is not None else None,
            )
            for topic_id, name in self._read("SELECT topic_id, name FROM topic WHERE client_id=?", client_id):
                session.topics.put(topic_id, name)
            for topic_filter, qos in self._read("SELECT filter, qos FROM subscription WHERE client_id=?", client_id):
                session.subscriptions[topic_filter] = Subscription(qos)
            for seq, topic, payload, qos, retain, released in self._read(
                "SELECT seq, topic, payload, qos, retain, released FROM message WHERE client_id=? ORDER BY seq",
                client_id,
            ):
                line = session.open_line(policy, seq)
                leg = Leg.PUBCOMP if released else None
                line.waiting.append(Outgoing(seq, topic, payload, qos, bool(retain), leg, sent_before=True))
                line.buffered_bytes += line.waiting[-1].size
                line.next_seq = seq + _SKIP
            yield session


def _peer(address: str, route: str) -> Peer:
    return tuple(json.loads(address)), tuple(bytes.fromhex(node) for node in json.loads(route))


def _lock(path: Path) -> IO[bytes]:
    handle = path.open("ab")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        raise StateUnusable(f"state folder {path.parent}: another gateway is using it") from None
    return handle
