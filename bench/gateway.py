"""What the gateway costs per message, next to the least it could cost: a UDP echo plus a bare MQTT publish.

For QoS 0, 1, 2 and 1, 8, 64, 512 clients with one message in flight each (200 bytes of payload): messages per second,
CPU per message of the gateway (Mosquitto's apart), p50 and p99 of an exchange, resident memory. At QoS 0, where nothing
is answered, an exchange is a burst of 8 publishes and a PINGREQ.

The baselines run in the same rounds: a bare asyncio UDP echo server under the same load, and a publish loop of the
MQTT library with as many messages in flight as there are clients (the cheaper of paho's two loops).
"""

from __future__ import annotations

import random
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

from bench._baselines import EchoServer, bare_publish_us
from bench._gateway_clients import QOS_0_BURST, Fleet, echo_round
from bench._goals import Report, parse_arguments
from protocol.mqttsn import ConnAck, Connect, Disconnect, PingReq, PingResp, decode, encode
from threadline.lab import GatewayService, Mosquitto

CLIENTS = (1, 8, 64, 512)
PAYLOAD = bytes(random.Random(7).randbytes(200))
IDLE_CLIENTS = 1_000
SLEEPING_CLIENTS = 5_000
_CPUCLOCK_SCHED = 2


def main() -> None:
    report = parse_arguments("gateway", __doc__.splitlines()[0])
    messages, rounds = (3_000, 3) if report.quick else (10_000, 7)
    with tempfile.TemporaryDirectory() as folder, Mosquitto(Path(folder)) as broker:
        subscriber = subprocess.Popen(
            ["mosquitto_sub", "-p", str(broker.port), "-t", "bench/#", "-q", "0"], stdout=subprocess.DEVNULL
        )
        try:
            with GatewayService(Path(folder), broker) as gateway, EchoServer() as echo:
                measure_publishing(report, gateway, broker, echo, messages, rounds)
            with GatewayService(Path(folder), broker, name="gateway-idle") as gateway:
                measure_idle(report, gateway)
        finally:
            subscriber.kill()
            subscriber.wait()
    report.finish()


def cpu_us(pid: int) -> float:
    """CPU time of another process, user and system, from its own clock: /proc only counts in steps of 10 ms."""
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED) * 1e6


def measure_publishing(
    report: Report, gateway: GatewayService, broker: Mosquitto, echo: EchoServer, messages: int, rounds: int
) -> None:
    """All combinations, `rounds` times over, baselines in between."""
    ratios: dict[int, list[float]] = {}
    gateway_process = psutil.Process(gateway.pid)
    print(f"{'qos':>3} {'clients':>7} {'msg/s':>8} {'gateway':>9} {'mosquitto':>9} {'echo':>7} {'publish':>8} "
          f"{'ratio':>6} {'p50 ms':>7} {'p99 ms':>7} {'RSS MB':>7}   CPU in us per message")  # fmt: skip
    for round_number in range(rounds):
        for clients in CLIENTS:
            before = cpu_us(echo.pid)
            echo_round(echo.address, clients, messages, b"\0" * (len(PAYLOAD) + 7))
            echo_us = (cpu_us(echo.pid) - before) / messages
            for qos in (0, 1, 2):
                publish_us = bare_publish_us(broker.port, qos, clients, messages, PAYLOAD)
                with Fleet(gateway.address, clients, f"b{round_number}-{qos}-{clients}") as fleet:
                    fleet.publish(qos, clients * 8, PAYLOAD)
                    at, broker_at, wall = cpu_us(gateway.pid), cpu_us(broker.pid), time.perf_counter()
                    latencies = sorted(fleet.publish(qos, messages, PAYLOAD))
                    wall = time.perf_counter() - wall
                    sent = len(latencies) * (QOS_0_BURST if qos == 0 else 1)
                    gateway_us = (cpu_us(gateway.pid) - at) / sent
                    broker_us = (cpu_us(broker.pid) - broker_at) / sent
                ratio = gateway_us / (echo_us + publish_us)
                if qos == 1:
                    ratios.setdefault(clients, []).append(ratio)
                figure = {
                    "qos": qos, "clients": clients, "messages_per_s": sent / wall, "gateway_us": gateway_us,
                    "mosquitto_us": broker_us, "echo_us": echo_us, "publish_us": publish_us, "ratio": ratio,
                    "p50_ms": latencies[len(latencies) // 2] * 1e3,
                    "p99_ms": latencies[int(len(latencies) * 0.99)] * 1e3,
                    "rss_mb": gateway_process.memory_info().rss / 1e6,
                }  # fmt: skip
                report.figures.append(figure)
                print(f"{qos:>3} {clients:>7} {figure['messages_per_s']:>8.0f} {gateway_us:>9.1f} {broker_us:>9.1f} "
                      f"{echo_us:>7.1f} {publish_us:>8.1f} {ratio:>6.2f} {figure['p50_ms']:>7.2f} "
                      f"{figure['p99_ms']:>7.2f} {figure['rss_mb']:>7.1f}", flush=True)  # fmt: skip
    size = f"{messages}_messages_{rounds}_rounds"
    for clients in CLIENTS:
        ratio = statistics.median(ratios[clients])
        report.goal(f"qos1_cpu_over_echo_plus_publish_{clients}_clients_{size}", ratio, "<=", 2.0, "x")
        report.goal(f"qos1_cpu_below_echo_plus_publish_{clients}_clients_{size}", ratio, "<=", 1.0, "x")


def measure_idle(report: Report, gateway: GatewayService) -> None:
    """Connected clients that do nothing, then sleeping ones, and whether they are still known."""
    process = psutil.Process(gateway.pid)
    with Fleet(gateway.address, IDLE_CLIENTS, "idle"):
        rss_mb = process.memory_info().rss / 1e6
    print(f"{IDLE_CLIENTS} connected idle clients: {rss_mb:.1f} MB resident")
    report.goal(f"rss_with_{IDLE_CLIENTS}_idle_clients", rss_mb, "<", 60, "MB")
    for number in range(SLEEPING_CLIENTS):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect(gateway.address)
            sock.settimeout(10)
            for message, answer in ((Connect(f"sleeper-{number}", 600), ConnAck), (Disconnect(3600), Disconnect)):
                sock.send(encode(message))
                assert type(decode(sock.recv(64))) is answer
    held = asleep(gateway)
    woken = 0
    for number in range(0, SLEEPING_CLIENTS, 50):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect(gateway.address)
            sock.settimeout(10)
            sock.send(encode(PingReq(f"sleeper-{number}")))
            woken += type(decode(sock.recv(64))) is PingResp
    rss_mb = process.memory_info().rss / 1e6
    print(f"{held} sleeping clients held, {woken} of {SLEEPING_CLIENTS // 50} woken from a new address: "
          f"{rss_mb:.1f} MB resident")  # fmt: skip
    report.figures.append({"sleeping": held, "woken": woken, "rss_mb": rss_mb})
    report.goal(f"sleeping_clients_held_of_{SLEEPING_CLIENTS}", held, ">=", SLEEPING_CLIENTS)


def asleep(gateway: GatewayService) -> int:
    """How many sleeping sessions the gateway itself counts."""
    with urllib.request.urlopen(f"http://127.0.0.1:{gateway.metrics_port}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith('threadline_gateway_sessions{state="asleep"}'):
                return int(float(line.split()[-1]))
    raise AssertionError("the gateway has no session metric")


if __name__ == "__main__":
    main()
