"""Commands as a peer may write them, whatever they say."""

from onelog.message import Buffer
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.frame import _encode


def encode_command(command: Command) -> list[Buffer]:
    """A command as buffers to write one after the other."""
    bodies = (command.body,) if command.body else ()
    return _encode(
        command.code,
        command.language,
        command.version,
        command.opaque,
        command.flag,
        command.remark,
        command.ext,
        bodies,
        command.serialize,
    )
