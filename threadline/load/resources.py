"""What processes cost, from /proc: CPU time and memory of everything that a component has started.

Memory is what nobody else has and no file gives back (RssAnon and RssShmem): pages of a database that a process looks
at are the kernel's to take away, and would make it seem to grow.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Usage:
    """Of a component: since it was first looked at, and now."""

    cpu_s: float
    memory_bytes: int
    rss_bytes: int


class Resources:
    """Components by name, each with the processes that it began with and all that these have started, unless they are
    to be taken alone."""

    def __init__(self, components: Mapping[str, Sequence[int]], alone: Collection[str] = ()) -> None:
        self._roots = {name: list(pids) for name, pids in components.items()}
        self._alone = alone
        self._seen_s: dict[int, float] = {}
        self._cpu_s = dict.fromkeys(self._roots, 0.0)
        self.look()
        self._cpu_s = dict.fromkeys(self._roots, 0.0)

    def look(self) -> dict[str, Usage]:
        """All of them, now. What has ended is counted as far as it was seen."""
        children = _children()
        found: dict[str, Usage] = {}
        for name, roots in self._roots.items():
            memory = rss = 0
            pids = roots if name in self._alone else _family(roots, children)
            for pid in pids:
                try:
                    cpu_s, status = _cpu_s(pid), _status(pid)
                except (OSError, IndexError):
                    continue
                self._cpu_s[name] += cpu_s - self._seen_s.get(pid, 0.0)
                self._seen_s[pid] = cpu_s
                memory += status.get("RssAnon", 0) + status.get("RssShmem", 0)
                rss += status.get("VmRSS", 0)
            found[name] = Usage(self._cpu_s[name], memory * 1024, rss * 1024)
        return found


def machine_cpu_s() -> float:
    """CPU time that all processors of this machine have been busy, or were kept from being so by whatever else runs on
    the computer that it is a guest of."""
    user, nice, system, _, _, irq, softirq, steal, *_ = map(
        int, (_PROC / "stat").read_text().split("\n")[0].split()[1:]
    )
    return (user + nice + system + irq + softirq + steal) / _TICKS


def is_alive(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        return _stat(pid)[0] != "Z"
    except (OSError, IndexError):
        return False


def _family(roots: Sequence[int], children: Mapping[int, list[int]]) -> list[int]:
    found: list[int] = []
    left = list(roots)
    while left:
        pid = left.pop()
        found.append(pid)
        left += children.get(pid, [])
    return found


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            try:
                parent = int(_stat(int(entry.name))[1])
            except (OSError, IndexError):
                continue
            found.setdefault(parent, []).append(int(entry.name))
    return found


def _stat(pid: int) -> list[str]:
    """The fields behind the command, which may hold anything: state, parent, ..."""
    return (_PROC / str(pid) / "stat").read_text().rpartition(") ")[2].split()


def _cpu_s(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _status(pid: int) -> dict[str, int]:
    """Of its memory, in kB."""
    found: dict[str, int] = {}
    for line in (_PROC / str(pid) / "status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("RssAnon", "RssShmem", "VmRSS"):
            found[name] = int(value.split()[0])
    return found
