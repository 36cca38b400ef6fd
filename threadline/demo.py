"""`threadline demo`: what works so far, end to end on this machine, checked against what was sent.

A device finds accidents in a stream of position reports and says which reports showed them. Three devices report
through a link that loses every fifth datagram, the gateway is killed in the middle, a device sleeps and fetches a
command when it wakes. Then agents write to the durable log, through the same link and while the translator is dead, and
Spark makes the live graph of it: which readings caused each alert, and which of them can still cause more. At last the
API is asked for it.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from queue import Empty, Queue

import paho.mqtt.client as paho
import typer
from paho.mqtt.enums import CallbackAPIVersion

from edge_agent import stream
from edge_agent.queries import linear_road, linear_road_accidents
from edge_agent.transport import Client, Message
from protocol.topics import state_topic
from threadline.demo_ask import AskScenes, kept_copy
from threadline.demo_graph import GraphScenes
from threadline.demo_log import LogScenes
from threadline.lab import ApiService, EmbeddedBroker, GatewayService, SparkService, TranslatorService, mqtt_broker
from threadline.lossy_link import LossyLink

DEVICES = ("pump-1", "pump-2", "pump-3")
READINGS = 80
WINDOW = 16
LOSS, DUPLICATES, DELAY_S = 0.20, 0.10, (0.01, 0.06)
_PATIENCE_S = 60.0


class _Cloud:
    """The MQTT side: all that arrives there."""

    def __init__(self, port: int) -> None:
        self._changed = threading.Condition()
        self.readings: Counter[bytes] = Counter()
        self.states: dict[str, str] = {}
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id="demo", clean_session=False)
        self._client.on_connect = lambda client, *_: client.subscribe([("plant/#", 2), ("tl/+/+/state", 1)])
        self._client.on_message = self._on_message
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def _on_message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        with self._changed:
            if message.topic.startswith("plant/"):
                self.readings[bytes(message.payload)] += 1
            else:
                self.states[message.topic] = message.payload.decode()
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> bool:
        """Whether the condition comes to hold in time."""
        with self._changed:
            return self._changed.wait_for(condition, _PATIENCE_S)

    def publish(self, topic: str, payload: bytes) -> None:
        self._client.publish(topic, payload, qos=1).wait_for_publish(_PATIENCE_S)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


class _Demo:
    """The scenes, one after the other, and what did not hold."""

    def __init__(self, link: LossyLink, cloud: _Cloud, gateway: GatewayService) -> None:
        self._link, self._cloud, self._gateway = link, cloud, gateway
        self.failures = 0

    def check(self, holds: bool, text: str) -> None:
        typer.echo(f"  {'ok' if holds else 'NO'}  {text}")
        self.failures += not holds

    def play(self) -> None:
        self._trace()
        clients = [Client(self._link.url, client_id=name, window=WINDOW).start() for name in DEVICES]
        try:
            self._report(clients)
            self._sleep(clients[0])
        finally:
            with ThreadPoolExecutor(len(clients)) as pool:
                list(pool.map(Client.close, clients))
        gone = [state_topic(name) for name in DEVICES]
        left = self._cloud.wait(lambda: all(self._cloud.states.get(topic) == "offline" for topic in gone))
        self.check(left, "the devices have left, and their state topics say offline")

    def _trace(self) -> None:
        reports = list(linear_road.reports())
        typer.echo(f"\nA device looks for accidents in {len(reports)} position reports of cars (Linear Road).")
        results = stream.run(linear_road_accidents.build(), {"reports": reports})
        alerts = results.of("accidents")
        self.check(bool(alerts), f"{len(alerts)} alerts, from {len(results.sources)} of the reports")
        stands = {(stop.vid, stop.place) for stop in linear_road.stops()}  # as planted, not as computed
        causes = [[cause.payload for cause in results.causes(alert)] for alert in alerts]
        self.check(
            all(len(each) == 8 for each in causes)
            and all((said.vid, linear_road.place_of_report(said)) in stands for each in causes for said in each),
            "each names 8 reports: four of each of two cars, all from the place where they stand",
        )
        first = alerts[0]
        typer.echo(f"      {first.payload}\n      because of")
        for cause in results.causes(first)[:3]:
            typer.echo(f"        {cause.id} at {cause.ts} ms  car {cause.payload.vid}, speed {cause.payload.speed}")
        typer.echo(f"        and {len(first.origins) - 3} more")

    def _report(self, clients: list[Client]) -> None:
        total = len(clients) * READINGS
        typer.echo(
            f"\n{len(clients)} devices send {READINGS} readings each at QoS 2 through a link that loses "
            f"{LOSS:.0%}, doubles {DUPLICATES:.0%} and reorders;\nthe gateway is killed (-9) when half of them are in."
        )
        sent = {f"{name} reading {number}".encode() for name in DEVICES for number in range(READINGS)}
        for number in range(READINGS):
            for name, client in zip(DEVICES, clients, strict=True):
                client.publish(f"plant/{name}/flow", f"{name} reading {number}".encode(), qos=2)
        readings = self._cloud.readings
        half = self._cloud.wait(lambda: len(readings) >= total // 2)
        self.check(half, "half of the readings are in: kill -9, and a new gateway process")
        self._gateway.kill()
        self._gateway.start()
        for client in clients:
            client.flush(_PATIENCE_S)
        self._cloud.wait(lambda: len(readings) >= total)
        stats = [client.stats() for client in clients]
        self.check(
            set(readings) == sent,
            f"{len(readings)} of {total} readings arrived; the link dropped {self._link.up.dropped} datagrams up and "
            f"{self._link.down.dropped} down, devices sent {sum(each.resent for each in stats)} packets again",
        )
        twice = sum(count - 1 for count in readings.values())
        self.check(
            twice <= len(clients) * WINDOW,
            f"{twice} arrived twice (only a message under way at the kill may)",
        )

    def _sleep(self, client: Client) -> None:
        name = DEVICES[0]
        typer.echo(f"\n{name} subscribes to its commands and falls asleep; a command comes; it wakes and asks.")
        commands: Queue[Message] = Queue()
        client.subscribe(f"commands/{name}", commands.put, qos=2).result(_PATIENCE_S)
        client.sleep(600, check_every_s=0).result(_PATIENCE_S)
        asleep = self._cloud.wait(lambda: self._cloud.states.get(state_topic(name)) == "asleep")
        self.check(asleep, f"its retained state on {state_topic(name)} is asleep")
        self._cloud.publish(f"commands/{name}", b"close valve")
        client.check()
        try:
            command = commands.get(timeout=_PATIENCE_S).payload.decode()
        except Empty:
            command = "nothing"
        self.check(command == "close valve", f"it got '{command}' when it woke")


def run(embedded: bool, with_spark: bool = True) -> int:
    """Run the demo; returns how many checks failed."""
    logging.disable(logging.WARNING)
    start = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="threadline-demo-") as folder,
        mqtt_broker(Path(folder), embedded) as broker,
        GatewayService(Path(folder), broker) as gateway,
        TranslatorService(Path(folder), broker) as translator,
        LossyLink(gateway.address, loss=LOSS, duplicate=DUPLICATES, delay_s=DELAY_S, seed=1) as link,
        _starting(SparkService(Path(folder), translator.log_folder, "--trigger", "500ms"), with_spark) as spark,
    ):
        if isinstance(broker, EmbeddedBroker):
            reason = "as asked" if embedded else "Mosquitto is not installed"
            typer.echo(f"Using the embedded MQTT broker, amqtt ({reason}).")
        typer.echo(f"MQTT broker: {broker.name} on {broker.address}. MQTT-SN gateway: udp 127.0.0.1:{gateway.port}.")
        with closing(_Cloud(broker.port)) as cloud:
            demo = _Demo(link, cloud, gateway)
            demo.play()
        LogScenes(Path(folder), link.url, translator, demo.check).play()
        if with_spark:
            GraphScenes(Path(folder), link.url, spark.result(), demo.check).play()
            with ApiService(Path(folder), broker, spark.result().store) as api:
                AskScenes(api, demo.check).play()
            kept = kept_copy(spark.result().store_path)
        else:
            typer.echo("\nWithout Spark, as asked: the live graph is left out.")
            kept = None
    verdict = "Everything held" if not demo.failures else f"{demo.failures} checks failed"
    typer.echo(f"\n{verdict} ({time.monotonic() - start:.1f} s).")
    if kept is not None:
        typer.echo(
            "\nThe graph stays. Serve it, and ask it with the curl lines above, or with `threadline sinks`:\n"
            f"    {Path(sys.argv[0]).parent}/threadline serve --store sqlite:///{kept}"
        )
    return demo.failures


@contextmanager
def _starting(spark: SparkService, wanted: bool) -> Iterator[Future[SparkService]]:
    """Spark takes a while to start: meanwhile, other scenes are played."""
    with ThreadPoolExecutor(1) as pool:
        ready = pool.submit(spark.start) if wanted else Future()
        try:
            yield ready
        finally:
            if wanted:
                ready.exception()
                spark.stop()
