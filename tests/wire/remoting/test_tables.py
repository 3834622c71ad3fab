"""Tables that brokers give each other."""

import pytest

from onelog.errors import WireError
from onelog.wire.remoting.clients import RequestMode
from onelog.wire.remoting.registration import DataVersion
from onelog.wire.remoting.stats import (
    ConsumerOffsets,
    DelayOffsets,
    QueuePosition,
    RequestModes,
    ResetOffsetList,
)


def test_positions_as_rocketmq_keeps_them_have_numbers_without_quotes() -> None:
    text = (
        b'{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":5},'
        b'"offsetTable":{"t@g":{0:17,1:4}}}'
    )
    assert ConsumerOffsets.decode(text) == ConsumerOffsets(
        data_version=DataVersion(counter=3, timestamp=5), offset_table={"t@g": {0: 17, 1: 4}}
    )
    text = b'{"offsetTable":{1:10,18:2}}'
    assert DelayOffsets.decode(text) == DelayOffsets(offset_table={1: 10, 18: 2})


@pytest.mark.parametrize(
    "body",
    [
        ConsumerOffsets(offset_table={"t@g": {0: 1}}),
        DelayOffsets(offset_table={3: 4}),
        RequestModes(message_request_mode_map={"t": {"g": RequestMode(mode="POP")}}),
        ResetOffsetList(offset_table=[QueuePosition(broker_name="b", offset=5, topic="t")]),
    ],
)
def test_what_is_written_can_be_read(
    body: ConsumerOffsets | DelayOffsets | RequestModes | ResetOffsetList,
) -> None:
    assert type(body).decode(body.encode()) == body


def test_what_cpp_clients_get_has_no_objects_as_keys() -> None:
    body = ResetOffsetList(offset_table=[QueuePosition(broker_name="b", offset=5, topic="t")])
    assert body.encode() == (
        b'{"offsetTable":[{"brokerName":"b","offset":5,"queueId":0,"topic":"t"}]}'
    )


def test_garbage_is_refused() -> None:
    for garbage in (b"", b"[]", b'{"offsetTable":{"t@g":{"x":1}}}', b'{"offsetTable":7}'):
        with pytest.raises(WireError):
            ConsumerOffsets.decode(garbage)
