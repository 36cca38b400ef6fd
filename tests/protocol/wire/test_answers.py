"""Answers to an agent: short, and for nobody else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire.answers import MOST_ANSWER_BYTES, Answer, Logged, Taken, decode_answer, encode_answer
from protocol.wire.errors import MalformedBatch

NONCE = st.integers(0, 2**64 - 1)
SEQ = st.integers(0, 2**62)
NAME = st.text(max_size=50)
ANSWERS: st.SearchStrategy[Answer] = st.one_of(
    st.builds(Logged, NONCE, SEQ, st.integers(0, 2**64 - 1), st.integers(0, 255), st.booleans()),
    st.builds(Taken, NAME, NAME, NONCE, SEQ),
)


@given(ANSWERS, NAME)
def test_what_is_answered_arrives(answer: Answer, agent: str) -> None:
    assert decode_answer(encode_answer(answer, agent), agent) == answer


@pytest.mark.parametrize("answer", [Logged(7, 3, 5, 31), Taken("car-8", "stopped", 7, 3)])
def test_any_bit_that_was_flipped_is_noticed(answer: Answer) -> None:
    data = encode_answer(answer, "car-7")
    with pytest.raises(MalformedBatch, match="car-8"):
        decode_answer(data, "car-8")
    for place in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        with pytest.raises(MalformedBatch):
            decode_answer(bytes(damaged), "car-7")


def test_an_answer_is_small() -> None:
    assert len(encode_answer(Logged(2**64 - 1, 10**6), "car-7")) <= 20
    with pytest.raises(MalformedBatch):
        decode_answer(encode_answer(Taken("a" * MOST_ANSWER_BYTES, "b", 1, 2), "car-7"), "car-7")


@given(st.binary(max_size=40))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedBatch):
        decode_answer(data, "car-7")
