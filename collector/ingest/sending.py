"""A document on its way into the log: published as an agent would, until the translator says that it is on disk.

Batch 0 of a run says that nothing comes before it, as the oldest batch of an agent does; no other one does. So batches
that overtake one another wait at the translator for those before them, and one that is missing is never given up.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import NamedTuple

from collector.ingest.document import Document
from collector.ingest.errors import NotAcknowledged, OutOfOrder, TooLarge
from collector.mqtt_link import MqttAway, MqttLink
from protocol.topics import down_topic, up_topic
from protocol.wire.answers import Logged, decode_answer
from protocol.wire.batch import MOST_BATCH_BYTES, frame, recoded
from protocol.wire.compression import Codec
from protocol.wire.errors import MalformedBatch

WAIT_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 1.0
_PUBLISH_S = 2.0
_ORDER_S = 2.0  # so long nothing of the run has come: what is missing is not on its way


class Accepted(NamedTuple):
    """It is in the log, with all before it; `next_batch` is the first of this run that is not. `duplicate_agent`:
    another run of the agent speaks as well, which is no longer expected to."""

    next_batch: int
    duplicate_agent: bool


class _Answers:
    """What the translator has said of a run."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._logged = asyncio.Event()
        self.last: Logged | None = None
        self.moved_at = monotonic()
        """When it was heard that something of the run has been logged."""

    def hear(self, payload: bytes) -> None:
        try:
            answer = decode_answer(payload, self._document.agent)
        except MalformedBatch:
            return
        if not isinstance(answer, Logged) or answer.nonce != self._document.nonce:
            return
        if self.last is None or answer.next_seq > self.last.next_seq:
            self.moved_at = monotonic()
        elif answer.next_seq < self.last.next_seq:
            return  # it comes from a translator that is gone
        self.last = answer
        if answer.next_seq > self._document.batch:
            self._logged.set()

    async def accepted(self, timeout_s: float) -> Accepted | None:
        """That it is in the log, as soon as that is heard; None if it is not in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._logged.wait()
        except TimeoutError:
            return None
        return None if self.last is None else Accepted(self.last.next_seq, self.last.duplicate)


async def ingest(link: MqttLink, document: Document, *, wait_s: float = WAIT_S) -> Accepted:
    """Return when a document is in the log, be it that it was before.

    MqttAway, Busy: it was not taken, or nobody knows; NotAcknowledged: no translator has said in time that it is; in
    all cases send the same one again. OutOfOrder: others have to be sent before it.
    """
    answers = _Answers(document)
    give_up = monotonic() + wait_s
    pause_s = _FIRST_PAUSE_S
    async with link.listening(down_topic(document.agent), answers.hear):
        while True:
            await _publish(link, document, answers.last, give_up)
            accepted = await answers.accepted(min(pause_s, give_up - monotonic()))
            if accepted is not None:
                return accepted
            now = monotonic()
            if now >= give_up and not link.is_up:
                raise link.away()
            last, patience_ends = answers.last, min(give_up, answers.moved_at + _ORDER_S)
            if last is not None and last.next_seq < document.batch and now >= patience_ends:
                raise OutOfOrder(document.batch, last.next_seq)
            if now >= give_up:
                raise NotAcknowledged(_unheard(last, wait_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def _publish(link: MqttLink, document: Document, answer: Logged | None, give_up: float) -> None:
    """Publish it if there is a connection; else as soon as there is one."""
    data = document.data
    if answer is not None and answer.codecs:
        data = recoded(data, frozenset(codec for codec in Codec if answer.codecs >> codec & 1))
    framed = frame(data, document.agent, oldest=document.batch == 0)
    if len(framed) > MOST_BATCH_BYTES:
        raise TooLarge(
            f"{len(framed)} bytes as the translator can read it, and {MOST_BATCH_BYTES} are allowed: divide it"
        )
    try:
        async with asyncio.timeout(give_up - monotonic()):
            await link.came_up()
            await link.publish(up_topic(document.agent), framed, _PUBLISH_S)
    except (MqttAway, TimeoutError):
        pass  # it is tried again


def _unheard(answer: Logged | None, wait_s: float) -> str:
    who = "no translator has answered" if answer is None else "the translator has not written it"
    return f"{who} within {wait_s:g} s: send the same batch again"
