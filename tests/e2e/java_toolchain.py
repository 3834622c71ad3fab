"""Java programs of the end-to-end tests: built with Maven, run with their results as JSON lines.

A program is a Maven project under `tests/e2e/java/`, and a profile of it. It is built at most once
per change of its sources: offline first, because everything it needs is usually there already.
"""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECTS = Path(__file__).resolve().parent / "java"
BUILD_TIMEOUT_S = 600

# RocketMQ frees its mapped files through internals of the JDK, which newer ones keep locked.
_JVM_FLAGS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)


class JavaMissingError(Exception):
    """There is no JDK or no Maven here."""


class JavaFailedError(Exception):
    """A build or a program ended with an error; the message holds the end of what it printed."""


@dataclass(frozen=True, slots=True)
class JavaProgram:
    """A program that is built. `home` takes what it would leave in the user's home folder."""

    main: str
    classpath: str
    home: Path
    options: tuple[str, ...] = ()

    def command(self, *arguments: str | int | Path, heap_mib: int = 512) -> list[str]:
        """The command line, for whoever wants to talk to the program while it runs."""
        flags = [f"-Xmx{heap_mib}m", f"-Duser.home={self.home}", *_JVM_FLAGS, *self.options]
        return ["java", *flags, "-cp", self.classpath, self.main, *map(str, arguments)]

    def run(
        self, *arguments: str | int | Path, heap_mib: int = 512, timeout_s: float = 120
    ) -> list[dict[str, Any]]:
        """The lines that the program printed; `JavaFailedError` unless it ended well."""
        ended = subprocess.run(
            self.command(*arguments, heap_mib=heap_mib),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            cwd=self.home,
        )
        if ended.returncode != 0:
            raise JavaFailedError(
                f"{self.main} {' '.join(map(str, arguments))} ended with {ended.returncode}:\n"
                + ended.stderr[-4000:]
            )
        return [json.loads(line) for line in ended.stdout.splitlines()]


def build(project: str, profile: str, main: str, home: Path) -> JavaProgram:
    """The program of a project in one of its profiles, built if its sources have changed."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise JavaMissingError(f"{tool} is not installed")
    folder = PROJECTS / project
    target = folder / "target" / profile
    classpath = target / "classpath.txt"
    if not _is_newer(classpath, [folder / "pom.xml", *(folder / "src").rglob("*.*")]):
        # Written last, so that its time stamp tells whether the whole build went well.
        classpath.unlink(missing_ok=True)
        _maven(folder, profile, classpath)
    return JavaProgram(main, f"{target / 'classes'}:{classpath.read_text().strip()}", home)


def _is_newer(built: Path, sources: list[Path]) -> bool:
    if not built.exists():
        return False
    built_at = built.stat().st_mtime
    return all(source.stat().st_mtime <= built_at for source in sources)


def _maven(folder: Path, profile: str, classpath: Path) -> None:
    goals = ["compile", "dependency:build-classpath", f"-Dmdep.outputFile={classpath}"]
    for mode in (["--offline"], []):
        ended = subprocess.run(
            ["mvn", "--quiet", "--batch-mode", *mode, f"-P{profile}", *goals],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
        if ended.returncode == 0 and classpath.exists():
            return
    raise JavaFailedError(f"mvn in {folder.name} failed:\n{ended.stdout[-4000:]}")
