"""Bodies on their way out: compressed where that is asked for and worth it.

Reading compressed bodies is not a matter of settings: `record.compression` reads every form.
"""

from onelog.client.options import Compression as FormName
from onelog.record.compression import Compression, compress

FORMS: dict[FormName, Compression] = {
    "zlib": Compression.ZLIB,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


def packed(body: bytes, form: Compression) -> tuple[bytes, int]:
    """The body as it travels, and the bits of its sysFlag; as it came if nothing is gained."""
    smaller = compress(body, form)
    return (smaller, form.sys_flag) if len(smaller) < len(body) else (body, 0)
