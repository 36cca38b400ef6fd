"""MQTT-SN messages for tests: a hypothesis strategy per type, and a fixed sample that covers every flag and form."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import strategies as st

from protocol.mqttsn import (
    Advertise,
    AnyMessage,
    ConnAck,
    Connect,
    Disconnect,
    GwInfo,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    SearchGw,
    SubAck,
    Subscribe,
    TopicType,
    UnsubAck,
    Unsubscribe,
    WillMsg,
    WillMsgReq,
    WillMsgResp,
    WillMsgUpd,
    WillTopic,
    WillTopicReq,
    WillTopicResp,
    WillTopicUpd,
    short_topic_id,
)

u8 = st.integers(0, 0xFF)
u16 = st.integers(0, 0xFFFF)
payload = st.binary(max_size=300)
text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)
short_name = st.text(st.characters(max_codepoint=0x7F), min_size=2, max_size=2)
qos = st.integers(0, 2)
publish_qos = st.integers(-1, 2)
topic_type = st.sampled_from(TopicType).map(int)


def _will_topics(message: type[WillTopic] | type[WillTopicUpd]) -> st.SearchStrategy[AnyMessage]:
    return st.one_of(st.just(message("")), st.builds(message, text, qos, st.booleans()))


def _with_topic(
    message: type[Subscribe] | type[Unsubscribe], **rest: st.SearchStrategy[object]
) -> st.SearchStrategy[AnyMessage]:
    """The topic field depends on the topic type: a name, a predefined id, or two octets."""
    return st.one_of(
        st.builds(message, st.just(int(TopicType.NORMAL)), text, u16, **rest),
        st.builds(message, st.just(int(TopicType.PREDEFINED)), u16, u16, **rest),
        st.builds(message, st.just(int(TopicType.SHORT)), short_name, u16, **rest),
    )


BY_TYPE: dict[type[AnyMessage], st.SearchStrategy[AnyMessage]] = {
    Advertise: st.builds(Advertise, u8, u16),
    SearchGw: st.builds(SearchGw, u8),
    GwInfo: st.builds(GwInfo, u8, st.binary(max_size=20)),
    Connect: st.builds(Connect, text, u16, st.booleans(), st.booleans(), u8),
    ConnAck: st.builds(ConnAck, u8),
    WillTopicReq: st.just(WillTopicReq()),
    WillTopic: _will_topics(WillTopic),
    WillMsgReq: st.just(WillMsgReq()),
    WillMsg: st.builds(WillMsg, payload),
    Register: st.builds(Register, u16, u16, text),
    RegAck: st.builds(RegAck, u16, u16, u8),
    Publish: st.builds(Publish, topic_type, u16, u16, payload, publish_qos, st.booleans(), st.booleans()),
    PubAck: st.builds(PubAck, u16, u16, u8),
    PubRec: st.builds(PubRec, u16),
    PubRel: st.builds(PubRel, u16),
    PubComp: st.builds(PubComp, u16),
    Subscribe: _with_topic(Subscribe, qos=qos, dup=st.booleans()),
    SubAck: st.builds(SubAck, u16, u16, u8, publish_qos),
    Unsubscribe: _with_topic(Unsubscribe),
    UnsubAck: st.builds(UnsubAck, u16),
    PingReq: st.one_of(st.just(PingReq()), st.builds(PingReq, text)),
    PingResp: st.just(PingResp()),
    Disconnect: st.builds(Disconnect, st.none() | u16),
    WillTopicUpd: _will_topics(WillTopicUpd),
    WillTopicResp: st.builds(WillTopicResp, u8),
    WillMsgUpd: st.builds(WillMsgUpd, payload),
    WillMsgResp: st.builds(WillMsgResp, u8),
}

any_message: st.SearchStrategy[AnyMessage] = st.one_of(*BY_TYPE.values())


def samples() -> Iterator[AnyMessage]:
    """At least one message of every type, with every flag, QoS, topic type and optional field in use."""
    yield from (Advertise(1, 900), SearchGw(0), SearchGw(3), GwInfo(1), GwInfo(7, b"\xc0\xa8\x00\x01"))
    for clean in (False, True):
        for will in (False, True):
            yield Connect("sensor-7", 60, clean, will)
    yield from (WillTopicReq(), WillMsgReq(), WillMsg(b"gone"), WillMsg(b""), WillMsgUpd(b"lost"), PingResp())
    for code in range(4):
        yield from (ConnAck(code), WillTopicResp(code), WillMsgResp(code))
        yield from (RegAck(1, 2, code), PubAck(1, 2, code), SubAck(1, 2, code, code - 1 if code else 0))
    for level in range(3):
        for retain in (False, True):
            yield from (WillTopic("will/topic", level, retain), WillTopicUpd("other/topic", level, retain))
    yield from (WillTopic(""), WillTopicUpd(""))
    yield from (Register(0, 1, "a/b/c"), Register(9, 0xFFFF, "π/ä"), Register(1, 2, "x" * 300))
    for topic_kind, number in ((0, 1), (1, 2), (2, short_topic_id("ab"))):
        for level in range(-1, 3):
            for retain in (False, True):
                for dup in (False, True):
                    msg_id = 77 if level > 0 else 0
                    yield Publish(topic_kind, number, msg_id, b"21.5", level, retain, dup)
    yield from (Publish(0, 1, 1, b"", 1), Publish(0, 1, 1, bytes(248), 1), Publish(0, 1, 1, bytes(249), 1))
    yield Publish(0, 1, 1, bytes(range(1, 256)) * 100, 2)
    yield from (PubRec(1), PubRel(2), PubComp(0xFFFF), UnsubAck(3))
    for level in range(3):
        for dup in (False, True):
            yield Subscribe(int(TopicType.NORMAL), "a/+/#", 5, level, dup)
            yield Subscribe(int(TopicType.PREDEFINED), 6, 5, level, dup)
            yield Subscribe(int(TopicType.SHORT), "ab", 5, level, dup)
    yield from (Unsubscribe(0, "a/+/#", 5), Unsubscribe(1, 6, 5), Unsubscribe(2, "ab", 5))
    yield from (PingReq(), PingReq("sensor-7"), Disconnect(), Disconnect(3600))
