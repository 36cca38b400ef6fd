"""Documents into the log, through a real broker and a real translator that come and go."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import aiomqtt
import pytest

from collector.ingest import Accepted, MqttAway, NotAcknowledged, OutOfOrder, ingest, nonce_of
from collector.log_view import Entry, entries
from collector.mqtt_link import MqttLink
from protocol.plan import PlanDocument, delays
from protocol.records import Declared, Gap
from protocol.topics import down_topic, up_topic
from protocol.wire.answers import Logged, encode_answer
from protocol.wire.batch import read_header, unframe
from protocol.wire.compression import Codec
from protocol.wire.sections import Kind
from tests.collector.ingest_documents import records_of, seen
from tests.system.delivery.account import check_log
from tests.system.ingest.job import WINDOW_MS, Job
from tests.system.ingest.site import Site, eventually, in_thread, run, running, until_taken
from threadline.lab import Mosquitto


def check_logged(site: Site, *jobs: Job) -> None:
    """The log is sound, and has of an agent exactly what its runs have told, each batch as it was told."""
    check_log(site.log_folder)
    check_entries(site.logged(jobs[0].agent), *jobs)


def check_entries(found: Sequence[Entry], *jobs: Job) -> None:
    plans = [entry for entry in found if isinstance(entry.record, Declared)]
    assert [(entry.nonce, entry.seq) for entry in plans] == [(nonce_of(job.agent, job.run), 0) for job in jobs]
    told = [entry for entry in found if not isinstance(entry.record, Declared)]
    expected = [(job, number) for job in jobs for number in range(job.steps)]
    places = list(dict.fromkeys((entry.nonce, entry.seq) for entry in told))
    assert places == [(nonce_of(job.agent, job.run), number) for job, number in expected]
    documents = [record for job, number in expected for record in records_of(job.batch(number))]
    assert seen([entry.record for entry in told]) == seen(documents)


def test_what_is_told_in_json_and_messagepack_is_in_the_log_as_it_was_told(site: Site) -> None:
    job = Job("as-told", "first", steps=4)

    async def scenario() -> list[Accepted]:
        async with site.link() as link:
            return [await ingest(link, job.document(number)) for number in range(job.steps)]

    assert run(scenario()) == [Accepted(number + 1, False) for number in range(job.steps)]
    check_logged(site, job)
    [plan] = [PlanDocument.from_json(each.record.plan) for each in site.logged("as-told") if each.kind is Kind.PLAN]
    assert delays(plan) == {"readings": {"counts": WINDOW_MS}}


def test_a_batch_that_is_sent_again_through_anybody_is_acknowledged_again_and_in_the_log_once(site: Site) -> None:
    job = Job("again", "first", steps=3)

    async def scenario() -> None:
        async with site.link() as one, site.link() as other:
            for number in range(job.steps):
                document = job.document(number)
                answers = await asyncio.gather(*[ingest(link, document) for link in (one, other, one)])
                assert {answer.next_batch for answer in answers} == {number + 1}
            assert await ingest(other, job.document(0)) == Accepted(3, False)

    run(scenario())
    check_logged(site, job)


def test_batches_that_overtake_one_another_are_put_in_order(site: Site) -> None:
    job = Job("overtaking", "first", steps=40)

    async def scenario() -> list[Accepted]:
        async with site.link() as link:
            documents = [job.document(number) for number in range(job.steps)]
            random.Random(1).shuffle(documents)
            return await asyncio.gather(*[ingest(link, each) for each in documents])

    assert max(run(scenario())).next_batch == job.steps
    check_logged(site, job)


def test_a_batch_before_which_others_are_missing_is_refused_and_none_is_ever_given_up(site: Site) -> None:
    job = Job("too-soon", "first", steps=100)

    async def scenario() -> None:
        async with site.link() as link:
            # One that the translator keeps for later, and one that is too far away for that.
            early = [ingest(link, job.document(number)) for number in (2, 90)]
            for number, found in zip((2, 90), await asyncio.gather(*early, return_exceptions=True), strict=True):
                assert isinstance(found, OutOfOrder)
                assert str(found) == f"batch {number} came too soon: 0 is the next one that is expected"
                assert found.expected == 0
            await asyncio.gather(*[ingest(link, job.document(number)) for number in range(job.steps)])

    run(scenario())
    check_logged(site, job)


def test_a_new_run_closes_the_old_one_and_an_old_one_that_goes_on_is_reported(site: Site) -> None:
    old, new = Job("restarted", "monday", steps=3), Job("restarted", "tuesday", steps=3, epoch=2)

    async def scenario() -> None:
        async with site.link() as link:
            for number in range(2):
                await ingest(link, old.document(number))
            for number in range(2):
                assert await ingest(link, new.document(number)) == Accepted(number + 1, False)
            assert await ingest(link, old.document(1)) == Accepted(2, False), "a copy of what is there says nothing new"
            assert await ingest(link, old.document(2)) == Accepted(3, True)
            assert (await ingest(link, new.document(2))).duplicate_agent

    run(scenario())
    assert {entry.epoch for entry in site.logged("restarted")} == {1, 2}
    assert not [entry for entry in site.logged("restarted") if isinstance(entry.record, Gap)]


def test_many_agents_speak_at_the_same_time(site: Site) -> None:
    jobs = [Job(f"crowd-{number}", "first", steps=3) for number in range(40)]

    async def scenario() -> None:
        async with site.link() as link:
            documents = [job.document(number) for job in jobs for number in range(job.steps)]
            await asyncio.gather(*[ingest(link, each) for each in documents])

    run(scenario())
    found = list(entries(site.log_folder))
    for job in jobs:
        check_entries([entry for entry in found if entry.agent == job.agent and entry.kind < Kind.SNAPSHOT], job)


def test_what_is_away_is_told_and_what_comes_back_in_time_is_waited_for(own_site: Site) -> None:
    """First the translator, then the broker as well."""
    job, site = Job("away", "first", steps=2), own_site

    async def scenario() -> None:
        async with site.link() as link:
            await in_thread(site.translator.kill)
            with pytest.raises(
                NotAcknowledged, match="no translator has answered within 1 s: send the same batch again"
            ):
                await ingest(link, job.document(0), wait_s=1)
            waiting = asyncio.create_task(ingest(link, job.document(0), wait_s=30))
            await asyncio.sleep(0)
            await in_thread(site.mosquitto.kill)
            await eventually(lambda: not link.is_up, "the link to notice")
            with pytest.raises(MqttAway, match="no connection to the MQTT broker at "):
                await ingest(link, job.document(1))
            await in_thread(site.mosquitto.start)
            await in_thread(site.translator.start)
            assert await waiting == Accepted(1, False)
            await ingest(link, job.document(1))

    run(scenario())
    check_logged(site, job)


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
def test_kill_9_of_the_translator_loses_nothing_and_tells_nothing_twice(own_site: Site, kills: int) -> None:
    """Two callers of two API processes send the same run; each sends a batch until it is taken."""
    job = Job("killed", "first", steps=50 * kills)
    documents = [job.document(number) for number in range(job.steps)]
    taken: list[Accepted] = []

    async def call(link: MqttLink) -> None:
        for document in documents:
            taken.append(await until_taken(link, document))

    async def scenario() -> None:
        async with own_site.link() as one, own_site.link() as other:
            callers = [asyncio.create_task(call(link)) for link in (one, other)]
            for _ in range(kills):
                goal = len(taken) + 10
                await eventually(lambda: len(taken) >= goal, "more to be taken")  # noqa: B023
                await in_thread(own_site.translator.kill)
                await in_thread(own_site.translator.start)
            assert not any(caller.done() for caller in callers), "it was through before all kills"
            await asyncio.gather(*callers)

    run(scenario())
    check_logged(own_site, job)


def test_a_translator_that_cannot_read_our_compression_gets_another(own_mosquitto: Mosquitto) -> None:
    """One on a machine for which there is no zstandard. It says so in its answer, as to any agent."""
    job, codecs = Job("plain", "first", steps=1), []

    async def translate() -> None:
        async with aiomqtt.Client("127.0.0.1", own_mosquitto.port) as client:
            await client.subscribe(up_topic(job.agent))
            async for message in client.messages:
                assert isinstance(message.payload, bytes)
                header, _ = read_header(unframe(message.payload, job.agent)[1])
                codecs.append(header.codec)
                is_read = header.codec in (Codec.ZLIB, Codec.ZLIB_DICTIONARY)
                answer = Logged(header.nonce, int(is_read), codecs=1 << Codec.ZLIB | 1 << Codec.ZLIB_DICTIONARY)
                await client.publish(down_topic(job.agent), encode_answer(answer, job.agent))

    async def scenario() -> Accepted:
        translator = asyncio.create_task(translate())
        async with running(MqttLink("127.0.0.1", own_mosquitto.port)) as link:
            accepted = await ingest(link, job.document(0))
        translator.cancel()
        return accepted

    assert run(scenario()) == Accepted(1, False)
    assert codecs[0] in (Codec.ZSTD, Codec.ZSTD_DICTIONARY)
