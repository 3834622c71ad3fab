"""A Protobuf descriptor set as protoc would write it, and messages of its type."""

from typing import Any

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    timestamp_pb2,
    wrappers_pb2,
)

_Field = descriptor_pb2.FieldDescriptorProto

_SCALARS = {
    "id": _Field.TYPE_INT64,
    "ratio": _Field.TYPE_DOUBLE,
    "small": _Field.TYPE_SINT32,
    "wide": _Field.TYPE_UINT32,
    "huge": _Field.TYPE_UINT64,
    "ok": _Field.TYPE_BOOL,
    "name": _Field.TYPE_STRING,
    "raw": _Field.TYPE_BYTES,
    "single": _Field.TYPE_FLOAT,
}


def descriptor_set() -> bytes:
    """shop.Order, with a field of each kind, and its imports."""
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto",
        package="shop",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"],
    )
    state = file.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    order = file.message_type.add(name="Order")
    for name, kind in _SCALARS.items():
        order.field.add(name=name, number=len(order.field) + 1, type=kind, label=1)
    optional = order.field.add(
        name="maybe",
        number=20,
        type=_Field.TYPE_INT32,
        label=1,
        proto3_optional=True,
        oneof_index=0,
    )
    assert optional.proto3_optional
    order.oneof_decl.add(name="_maybe")
    _add(order, "state", 21, _Field.TYPE_ENUM, ".shop.State")
    _add(order, "at", 22, _Field.TYPE_MESSAGE, ".google.protobuf.Timestamp")
    _add(order, "limit", 23, _Field.TYPE_MESSAGE, ".google.protobuf.UInt64Value")
    _add(order, "items", 24, _Field.TYPE_MESSAGE, ".shop.Order.Item", label=3)
    _add(order, "tags", 25, _Field.TYPE_STRING, "", label=3)
    _add(order, "counts", 26, _Field.TYPE_MESSAGE, ".shop.Order.CountsEntry", label=3)
    item = order.nested_type.add(name="Item")
    _add(item, "sku", 1, _Field.TYPE_STRING, "")
    _add(item, "state", 2, _Field.TYPE_ENUM, ".shop.State")
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    _add(entry, "key", 1, _Field.TYPE_UINT64, "")
    _add(entry, "value", 2, _Field.TYPE_MESSAGE, ".shop.Order.Item")
    tree = file.message_type.add(name="Tree")
    _add(tree, "left", 1, _Field.TYPE_MESSAGE, ".shop.Tree")
    old = descriptor_pb2.FileDescriptorProto(name="old.proto", package="old", syntax="proto2")
    strict = old.message_type.add(name="Strict")
    _add(strict, "id", 1, _Field.TYPE_INT32, "", label=2)
    found = descriptor_pb2.FileDescriptorSet()
    for imported in (timestamp_pb2, wrappers_pb2):
        imported.DESCRIPTOR.CopyToProto(found.file.add())
    found.file.extend([file, old])
    return bytes(found.SerializeToString())


def _add(message: Any, name: str, number: int, kind: int, type_name: str, label: int = 1) -> None:
    message.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)


def message_class(name: str) -> Any:
    """The class of a message of the set."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def order(**fields: object) -> bytes:
    """An encoded shop.Order."""
    return bytes(message_class("shop.Order")(**fields).SerializeToString())
