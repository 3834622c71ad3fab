"""Messages as JSON has them."""

import base64
from typing import Any

from onelog.admin.topics import Encoding, MessageDocument
from onelog.client.connection.address import host_text
from onelog.errors import CompressionError
from onelog.message import TRANSACTION_MASK, Message, SysFlag, decode_properties
from onelog.record.compression import unpacked_body

SHORT_BYTES = 1_024
LONG_BYTES = 1 << 20
_COMPRESSIONS = {0: "zlib", 1: "lz4", 2: "zstd", 3: "zlib"}
_TRANSACTIONS = {
    int(SysFlag.PREPARED): "prepared",
    int(SysFlag.COMMITTED): "committed",
    int(SysFlag.ROLLED_BACK): "rolled back",
}


def shown(data: bytes | None) -> tuple[str | None, Encoding]:
    """Bytes as text if they are that, else in base64."""
    if data is None:
        return None, "text"
    try:
        return data.decode(), "text"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def document(
    message: Message, body_max: int = SHORT_BYTES, broker: str | None = None
) -> MessageDocument:
    """A message, with so much of its body."""
    trouble = None
    try:
        body = unpacked_body(message)
    except CompressionError as error:
        body, trouble = bytes(message.body), str(error)
    is_cut = len(body) > body_max
    text, encoding = shown(_cut(body, body_max) if is_cut else bytes(body))
    return MessageDocument(
        id=message.message_id,
        unique_key=clean(message.unique_key),
        topic=message.topic,
        broker=broker,
        queue=message.queue_id,
        offset=message.queue_offset,
        log_offset=message.log_offset,
        tags=clean(message.tags),
        keys=[clean(each) or "" for each in message.keys],
        born_ms=message.born_ms,
        born_host=host_text(message.born_host),
        store_ms=message.store_ms,
        store_host=host_text(message.store_host),
        reconsume_times=message.reconsume_times,
        flag=message.flag,
        sys_flag=message.sys_flag,
        sys_flag_means=flag_names(message.sys_flag),
        size=message.size,
        properties=_properties(message),
        body=text or "",
        body_encoding=encoding,
        body_bytes=len(body),
        body_is_cut=is_cut,
        trouble=trouble,
    )


def _properties(message: Message) -> dict[str, str]:
    return {
        clean(name) or "": clean(value) or ""
        for name, value in decode_properties(message.properties).items()
    }


def flag_names(flags: int) -> list[str]:
    """What the bits of a message's sysFlag mean."""
    names = []
    if flags & SysFlag.COMPRESSED:
        names.append(f"compressed ({_COMPRESSIONS.get(flags >> 8 & 7, 'unknown')})")
    if flags & TRANSACTION_MASK:
        names.append(_TRANSACTIONS[flags & TRANSACTION_MASK])
    named = {
        "multi tags": SysFlag.MULTI_TAGS,
        "need unwrap": SysFlag.NEED_UNWRAP,
        "inner batch": SysFlag.INNER_BATCH,
    }
    return names + [name for name, bit in named.items() if flags & bit]


def clean(text: Any) -> Any:
    """Text that JSON can have: what was no UTF-8 is replaced."""
    return None if text is None else text.encode("utf-8", "replace").decode()


def _cut(body: bytes | memoryview, size: int) -> bytes:
    """The beginning, not in the middle of a character."""
    cut = bytes(body[:size])
    for back in range(min(4, len(cut))):
        try:
            cut[: len(cut) - back].decode()
        except UnicodeDecodeError:
            continue
        return cut[: len(cut) - back]
    return cut
