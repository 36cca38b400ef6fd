"""ProvLight made again after its paper: a dict per event, `zlib.compress(str(dict))`, MQTT-SN at QoS 2.

Begins are published at once; ended tasks too, or in groups, which is the paper's policy ("group data just from ended
tasks, so users may still track at runtime the tasks that have already started"). The MQTT-SN client is the one that
ProvLight uses. It prints every packet; these prints are taken out here, since they are no part of the idea.
"""

from __future__ import annotations

import time
import zlib
from typing import Any

import mqttsn.client
import mqttsn.lib.publishes

QOS = 2
PATIENCE_S = 2.0
"""How long without an acknowledgement until the rest counts as lost: the client never sends anything twice."""


class _Acknowledgements(mqttsn.client.Callback):  # type: ignore[misc]
    """The client calls `published` when a QoS 2 exchange is complete."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def published(self, msg_id: int) -> None:
        self.count += 1


class _Publisher:
    """The connection, and the ended tasks that wait for their group to be full."""

    def __init__(self, server: str, client: str, group: int) -> None:
        host, port = server.rsplit(":", 1)
        self._client = mqttsn.client.Client(client.encode(), host, int(port))
        self._acknowledged = _Acknowledgements()
        self._client.register_callback(self._acknowledged)
        self._client.connect()
        self._topic_id = self._client.register(f"provlight/{client}".encode())
        self._group = group
        self._ended: list[dict[str, Any]] = []
        self._published = 0

    def publish(self, message: object) -> None:
        self._client.publish(self._topic_id, zlib.compress(str(message).encode()), qos=QOS)
        self._published += 1

    def publish_ended(self, event: dict[str, Any]) -> None:
        if not self._group:
            self.publish(event)
            return
        self._ended.append(event)
        if len(self._ended) == self._group:
            self.publish_group()

    def publish_group(self) -> None:
        if self._ended:
            self.publish(self._ended)
            self._ended = []

    def finish(self) -> None:
        """There is no goodbye: the client's disconnect raises an error before it sends anything."""
        seen, give_up = -1, 0.0
        while self._acknowledged.count < self._published:
            if self._acknowledged.count != seen:
                seen, give_up = self._acknowledged.count, time.monotonic() + PATIENCE_S
            elif time.monotonic() > give_up:
                return
            time.sleep(0.01)


_publisher: _Publisher


def start(server: str, client: str, group: int = 0) -> None:
    """Connect and register the topic."""
    global _publisher  # noqa: PLW0603
    for module in (mqttsn.client, mqttsn.lib.publishes):
        module.print = _print_nothing
    _publisher = _Publisher(server, client, group)


def _print_nothing(*_: object) -> None:
    pass


def finish() -> None:
    """Until every QoS 2 exchange is complete, or nothing has come back for a while."""
    _publisher.finish()


class Workflow:
    def __init__(self, id: int) -> None:
        self.id = id

    def begin(self) -> None:
        _publisher.publish({"workflow_id": self.id, "status": "running", "time": time.time()})

    def end(self) -> None:
        _publisher.publish_group()
        _publisher.publish({"workflow_id": self.id, "status": "finished", "time": time.time()})


class Data:
    def __init__(self, id: str, workflow_id: int, attributes: dict[str, Any]) -> None:
        self.id = id
        self.workflow_id = workflow_id
        self.derivations: list[str] = []
        self.attributes = attributes

    def described(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "workflow_id": self.workflow_id,
            "derivations": self.derivations,
            "attributes": self.attributes,
        }


class Task:
    def __init__(self, id: str, workflow: Workflow, transformation_id: int, dependencies: list[str]) -> None:
        self.id = id
        self.workflow_id = workflow.id
        self.transformation_id = transformation_id
        self.dependencies = dependencies

    def begin(self, data: list[Data]) -> None:
        _publisher.publish(self._event("running", data))

    def end(self, data: list[Data]) -> None:
        _publisher.publish_ended(self._event("finished", data))

    def _event(self, status: str, data: list[Data]) -> dict[str, Any]:
        return {
            "task_id": self.id,
            "workflow_id": self.workflow_id,
            "transformation_id": self.transformation_id,
            "dependencies": self.dependencies,
            "status": status,
            "time": time.time(),
            "data": [each.described() for each in data],
        }
