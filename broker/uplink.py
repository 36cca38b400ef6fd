"""From the device to the broker: a publish is acknowledged to the device only when the broker has acknowledged it.

While an upload is on its way, copies of it are recognised by message id and content. A finished QoS 2 exchange is
remembered for a while as well, because the network may deliver a delayed copy of its PUBLISH after its PUBREL.
"""

from __future__ import annotations

from broker.config import GatewayConfig
from broker.outputs import MqttPublish, Outputs
from broker.session import Session, Upload, UploadState
from protocol.mqttsn import (
    MalformedPacket,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReturnCode,
    TopicType,
    is_topic_name,
    short_topic_name,
)

_SLOW_S = 5.0
"""A broker that has not acknowledged a publish for so long is as good as away: the device is told."""


class Uplink:
    """Takes publishes from clients and answers them once the broker has."""

    def __init__(self, config: GatewayConfig, outputs: Outputs) -> None:
        self._config = config
        self._out = outputs
        self.pending = 0
        self.pending_bytes = 0
        self.broker_is_up = False

    def topic_name(self, session: Session | None, message: Publish) -> str | None:
        """The name behind a publish's topic field; None if the client has no such topic."""
        if message.topic_type == TopicType.NORMAL:
            return None if session is None else session.topics.by_id.get(message.topic_id)
        if message.topic_type == TopicType.PREDEFINED:
            return self._config.predefined.name(session.client_id if session is not None else "", message.topic_id)
        try:
            name = short_topic_name(message.topic_id)
        except MalformedPacket:
            return None
        return name if is_topic_name(name) and not name.startswith("$") else None

    def publish(self, session: Session, message: Publish, now: float) -> None:
        """A PUBLISH of a client with a session."""
        name = self.topic_name(session, message)
        if name is None:
            self._refuse(session, message, ReturnCode.INVALID_TOPIC)
        elif message.qos <= 0:
            if not self.broker_is_up and message.qos == 0:
                self._refuse(session, message, ReturnCode.CONGESTION)
            else:
                self._pass_on(name, message)
        elif message.msg_id == 0:
            self._out.count("refused", "no message id")
            self._refuse(session, message, ReturnCode.NOT_SUPPORTED)
        else:
            self._upload(session, message, name, now)

    def publish_without_session(self, message: Publish) -> None:
        """A PUBLISH at QoS -1 from somebody who never connected; nobody waits for an answer."""
        name = self.topic_name(None, message)
        if name is None:
            self._out.count("dropped", "unknown topic at qos -1")
        else:
            self._pass_on(name, message)

    def _pass_on(self, name: str, message: Publish) -> None:
        if not self.broker_is_up:
            self._out.count("dropped", "broker away at qos 0 or -1")
            return
        self._out.count("published", str(message.qos))
        self._out.mqtt.append(MqttPublish(name, message.payload, 0, message.retain))

    def _upload(self, session: Session, message: Publish, name: str, now: float) -> None:
        digest = hash((name, message.payload, message.qos))
        known = session.uploads.get(message.msg_id)
        if known is not None and known.digest == digest:
            self._repeat(session, known, message, now)
            return
        if message.qos == 2 and self._is_finished(session, message.msg_id, digest, now):
            self._out.count("duplicates", "finished qos 2 publish")
            self._out.send(PubRec(message.msg_id), session.peer)
            return
        if not self._has_room(session, message, now):
            self._refuse(session, message, ReturnCode.CONGESTION)
            return
        size = len(message.payload) + len(name)
        upload = Upload(session, message.msg_id, message.topic_id, message.qos, digest, size, now)
        session.uploads[message.msg_id] = upload
        self.pending += 1
        self.pending_bytes += size
        self._out.count("published", str(message.qos))
        self._out.mqtt.append(MqttPublish(name, message.payload, message.qos, message.retain, upload))

    def _is_finished(self, session: Session, msg_id: int, digest: int, now: float) -> bool:
        known, at = session.finished.get(msg_id, (None, 0.0))
        return known == digest and now - at <= self._config.exchange_memory_s

    def _repeat(self, session: Session, upload: Upload, message: Publish, now: float) -> None:
        self._out.count("duplicates", f"qos {upload.qos} publish")
        if upload.state is UploadState.RECEIVED:
            self._out.send(PubRec(upload.msg_id), session.peer)
        elif not self.broker_is_up or now - upload.started > _SLOW_S:
            self._refuse(session, message, ReturnCode.CONGESTION)

    def _has_room(self, session: Session, message: Publish, now: float) -> bool:
        config = self._config
        if not self.broker_is_up:
            return False
        if self.pending >= config.max_pending_publishes or self.pending_bytes >= config.max_pending_bytes:
            return False
        if len(session.uploads) < config.max_uploads_per_session or message.msg_id in session.uploads:
            return True
        oldest = next(iter(session.uploads.values()))
        if oldest.state is UploadState.RECEIVED and now - oldest.started > 60:
            del session.uploads[oldest.msg_id]
            self._out.count("dropped", "unreleased qos 2 exchange")
            return True
        return False

    def _refuse(self, session: Session, message: Publish, code: ReturnCode) -> None:
        self._out.count("publish refused", code.name.lower())
        self._out.send(PubAck(message.topic_id, message.msg_id, code), session.peer)

    def published(self, upload: Upload, accepted: bool) -> None:
        """The broker has answered: pass the answer on, unless the client has begun something else meanwhile."""
        self.pending -= 1
        self.pending_bytes -= upload.size
        session = upload.session
        if session.uploads.get(upload.msg_id) is not upload:
            self._out.count("acknowledgements nobody waits for")
            return
        if upload.qos == 2 and accepted:
            upload.state = UploadState.RECEIVED
            self._out.send(PubRec(upload.msg_id), session.peer)
            return
        del session.uploads[upload.msg_id]
        code = ReturnCode.ACCEPTED if accepted else ReturnCode.NOT_SUPPORTED
        self._out.send(PubAck(upload.topic_id, upload.msg_id, code), session.peer)

    def release(self, session: Session, message: PubRel, now: float) -> None:
        """PUBREL ends an exchange; an unknown one is answered too, its PUBCOMP may have been lost."""
        upload = session.uploads.get(message.msg_id)
        if upload is not None:
            if upload.state is UploadState.PENDING:
                self._out.count("refused", "pubrel before pubrec")
                return
            del session.uploads[message.msg_id]
            self._remember(session, upload, now)
        self._out.send(PubComp(message.msg_id), session.peer)

    def _remember(self, session: Session, upload: Upload, now: float) -> None:
        finished = session.finished
        finished.pop(upload.msg_id, None)
        finished[upload.msg_id] = (upload.digest, now)
        horizon = now - self._config.exchange_memory_s
        for msg_id, (_, at) in list(finished.items()):
            if at >= horizon and len(finished) <= self._config.exchange_memory_count:
                break
            del finished[msg_id]
