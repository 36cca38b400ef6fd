"""The forwarder: a group from the log, its requests to the other system, and then, on disk, that it is done."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Generator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic

from collector.forwarding.errors import ForwardingError, PositionUnusable
from collector.forwarding.following import MOST_BYTES, MOST_ROWS, Follower, Group
from collector.forwarding.position import PositionFile, Purpose
from collector.forwarding.refusals import Refusals
from collector.forwarding.sending import Sender
from collector.forwarding.system import Remembering, Request, shown_url, system_named

_LOG = logging.getLogger(__name__)
_LOOK_EVERY_S = 0.2
_SLICE_S = 0.1
_TOLD_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class ForwardOptions:
    """Where from, where to, in whose words, and whose records."""

    log: Path
    to: str
    url: str
    position: Path
    agent: str | None = None
    once: bool = False
    give_up_after_s: float | None = None
    metrics: tuple[str, int] | None = None
    most_rows: int = MOST_ROWS
    most_bytes: int = MOST_BYTES


class Forwarder:
    """Forwards until it is stopped, or, once, all that is in the log now. It has its position file until `close`."""

    def __init__(self, options: ForwardOptions) -> None:
        self.records = 0
        self.groups = 0
        self._options = options
        self._is_stopping = False
        self._is_whole = self._is_saved = True
        self._system = system_named(options.to, options.url)
        self._follower = Follower(options.log, {}, options.agent, is_bounded=options.once)
        purpose = Purpose(self._follower.log_id, options.to, options.agent)
        self._position = PositionFile(options.position, purpose)
        self._follower.positions, self._follower.checks = self._position.positions, self._position.checks
        self._sender = Sender(Refusals(options.position), self._wait, give_up_after_s=options.give_up_after_s)
        if isinstance(self._system, Remembering) and self._position.memory is not None:
            self._recall(self._system)

    def run(self) -> None:
        """Until `stop`, or, once, to the end of the log."""
        if self._options.metrics is not None:
            from collector.forwarding.metrics import serve

            serve(self, *self._options.metrics)
        _LOG.info("forwarding log=%s to=%s url=%s", self._options.log, self._options.to, shown_url(self._options.url))
        self._follower.check_log()
        tell_at = monotonic() + _TOLD_EVERY_S
        while not self._is_stopping:
            has_more = False
            for group in self._follower.groups(self._options.most_rows, self._options.most_bytes):
                has_more = True
                if not self._forward(group):
                    break
            if monotonic() >= tell_at:
                tell_at = monotonic() + _TOLD_EVERY_S
                self._follower.check_log()
                self._save()
                self._tell("forwarded")
            if not has_more and (self._options.once or self._wait(_LOOK_EVERY_S)):
                break
        self._save()
        self._tell("forwarder stopped")

    def stop(self) -> None:
        """End after the group that is under way, or, if the other system does not take it soon, without it. Only sets a
        flag, and so may be called in a signal's handler."""
        self._is_stopping = True

    def close(self) -> None:
        """Let go of everything. What was not saved is forwarded again."""
        self._sender.close()
        self._position.close()

    def totals(self) -> dict[str, float]:
        """All counters. For any thread."""
        return {
            "records": self.records,
            "skipped": sum(self.skipped().values()),
            "groups": self.groups,
            **asdict(self._sender.traffic),
            "lag_seconds": self._follower.lag_s(),
        }

    def skipped(self) -> Counter[str]:
        """What the system could not say in its words."""
        return Counter(getattr(self._system, "skipped", {}))

    def _forward(self, group: Group) -> bool:
        """Whether to go on: the other system has answered for the whole group, and nobody has said stop."""
        self._is_whole = False
        is_told = False
        with closing(self._requests(group)) as requests:
            for request in requests:
                is_told = True
                if not self._sender.send(request):
                    return False
        self._position.positions[group.shard] = group.end
        self._position.checks[group.shard] = group.check
        self._is_whole, self._is_saved = True, False
        self.groups += 1
        self.records += len(group.entries)
        if is_told:
            self._save()
        return not self._is_stopping

    def _requests(self, group: Group) -> Generator[Request]:
        if not group.entries:
            return
        try:
            yield from self._system.requests(group.entries)
        except Exception as error:  # a user's class may do anything
            _LOG.exception("records cannot be translated to=%s shard=%d", self._options.to, group.shard)
            raise ForwardingError(
                f"{self._options.to} cannot translate what shard {group.shard} holds before {tuple(group.end)}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _save(self) -> None:
        """What the system remembers belongs to whole groups: one that was broken off comes again."""
        if self._is_whole and not self._is_saved:
            self._position.save(self._system.memory() if isinstance(self._system, Remembering) else None)
            self._is_saved = True

    def _recall(self, system: Remembering) -> None:
        try:
            system.recall(self._position.memory)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            self.close()
            raise PositionUnusable(
                f"what {self._options.to} remembers in {self._options.position} cannot be read ({error!r}): "
                "put it back from a copy, or give another --position to forward everything that the log has"
            ) from error

    def _wait(self, seconds: float) -> bool:
        """Whether it is time to stop. In slices: a signal interrupts no sleep for good."""
        until = monotonic() + seconds
        while not self._is_stopping and (left_s := until - monotonic()) > 0:
            time.sleep(min(left_s, _SLICE_S))
        return self._is_stopping

    def _tell(self, what: str) -> None:
        counts = {name: round(value, 1) for name, value in self.totals().items()}
        skipped = {f"skipped_{name}": count for name, count in sorted(self.skipped().items())}
        _LOG.info("%s %s", what, " ".join(f"{name}={value}" for name, value in {**counts, **skipped}.items()))
