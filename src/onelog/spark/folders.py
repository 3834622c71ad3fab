"""Folders, as people name them: paths of this machine, or `file:` URLs.

What is somewhere else has a scheme (s3://, hdfs://, gs://), which as a path would be a folder of
that name, made here. A path that went through `pathlib` has lost one of its slashes by then.
"""

import re
from pathlib import Path
from urllib.parse import unquote

from onelog.errors import ConfigError

_URL = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]+):(/(?:/([^/]*)(?=/|$))?)?(.*)", re.DOTALL)
_HERE = ("", "localhost")


def local_folder(what: str, given: str | Path) -> Path:
    """The folder that somebody named; `ConfigError` if it is not one of this machine."""
    found = _URL.fullmatch(str(given))
    if found is None:
        return Path(given)
    scheme, slash, host, path = found.groups()
    if scheme.lower() == "file" and slash and (host or "") in _HERE:
        return Path("/", unquote(path))
    raise ConfigError(
        f"{what} {given}: {scheme}:// is not supported, only folders of this machine are. Name "
        f"one, of a disk or of a mounted bucket (s3fs, gcsfuse, NFS), and copy from there; a "
        f"folder here that is named so is ./{given}"
    )
