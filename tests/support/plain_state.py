"""The memory of a bucket as a dictionary."""

from __future__ import annotations


class PlainState(dict[tuple[str, int], bytes]):
    """What `spark_jobs.state.State` asks for."""

    def get(self, name: str, number: int) -> bytes | None:  # type: ignore[override]
        return super().get((name, number))

    def put(self, name: str, number: int, value: bytes) -> None:
        assert isinstance(name, str), name
        assert type(number) is int, number
        assert type(value) is bytes, type(value)
        self[name, number] = value

    def remove(self, name: str, number: int) -> None:
        del self[name, number]
