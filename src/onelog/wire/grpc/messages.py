"""The messages of RocketMQ's gRPC protocol, by their names: `messages.SendMessageRequest`.

They are made from `rocketmq.binpb`, which `protoc --descriptor_set_out` wrote from the files in
`protos` (RocketMQ's own), into a pool of their own: a program may have another version of them.
"""

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, duration_pb2, message_factory, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool

PACKAGE = "apache.rocketmq.v2"
NAMED = "MessagingService"


def _filled() -> DescriptorPool:
    pool = DescriptorPool()
    for known in (duration_pb2, timestamp_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    files = descriptor_pb2.FileDescriptorSet.FromString(
        Path(__file__).with_name("rocketmq.binpb").read_bytes()
    )
    for each in files.file:
        pool.AddSerializedFile(each.SerializeToString())
    return pool


_POOL = _filled()


def __getattr__(name: str) -> Any:
    try:
        found = message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))
    except KeyError:
        raise AttributeError(name) from None
    globals()[name] = found
    return found


def numbers(enum: str) -> dict[str, int]:
    """The values of an enumeration, by their names."""
    found = _POOL.FindEnumTypeByName(f"{PACKAGE}.{enum}")
    return {each.name: each.number for each in found.values}


def methods() -> dict[str, tuple[Any, Any]]:
    """Each method by its path, and the classes of its request and answer."""
    service = _POOL.FindServiceByName(f"{PACKAGE}.{NAMED}")
    return {
        f"/{service.full_name}/{each.name}": (
            message_factory.GetMessageClass(each.input_type),
            message_factory.GetMessageClass(each.output_type),
        )
        for each in service.methods
    }
