"""Which Java Spark gets."""

import stat
import subprocess
from pathlib import Path

import pytest

from onelog.errors import JavaNotFoundError
from onelog.spark import java
from onelog.spark.java import java_home, java_version

NOWHERE = {"PATH": "/nowhere"}


def fake_java(home: Path, version: str | None, *, release: bool = True) -> Path:
    """A home whose java says that it has some version."""
    (home / "bin").mkdir(parents=True)
    script = home / "bin" / "java"
    said = f'openjdk version "{version}" 2026-01-01' if version else "what?"
    script.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    script.chmod(0o755)
    if release and version:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_packaged", lambda: None)


@pytest.mark.parametrize("release", [True, False])
@pytest.mark.parametrize(
    ("said", "version"),
    [("17.0.15", 17), ("21", 21), ("1.8.0_412", 8), ("11.0.2", 11), (None, None)],
)
def test_a_version_is_read_from_the_file_or_asked_for(
    tmp_path: Path, said: str | None, version: int | None, release: bool
) -> None:
    assert java_version(fake_java(tmp_path / "home", said, release=release)) == version


def test_a_folder_without_java_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path) is None


def test_the_home_that_is_set_goes_first(tmp_path: Path) -> None:
    mine, other = fake_java(tmp_path / "a", "17.0.1"), fake_java(tmp_path / "b", "21.0.1")
    found = java_home({"JAVA_HOME": str(mine), "PATH": str(other / "bin")})
    assert found == mine


def test_an_old_home_is_passed_over_for_the_path(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "a", "11.0.1"), fake_java(tmp_path / "b", "21.0.1")
    assert java_home({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == new


def test_a_link_on_the_path_leads_to_the_home(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert java_home({"PATH": str(tmp_path / "bin")}) == home


def test_without_any_java_the_message_says_what_to_install(no_package: None) -> None:
    with pytest.raises(JavaNotFoundError, match="JAVA_HOME is not set") as caught:
        java_home(NOWHERE)
    assert "onelog[spark]" in str(caught.value)


def test_with_an_old_java_the_message_says_which(tmp_path: Path, no_package: None) -> None:
    old = fake_java(tmp_path / "old", "11.0.1")
    with pytest.raises(JavaNotFoundError, match=r"JAVA_HOME \(.*old\) is version 11"):
        java_home({"JAVA_HOME": str(old), **NOWHERE})
    with pytest.raises(JavaNotFoundError, match="is no Java"):
        java_home({"JAVA_HOME": str(tmp_path / "gone"), **NOWHERE})


def test_the_packaged_java_starts_with_what_spark_says_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = java_home(NOWHERE)
    assert home.is_relative_to(tmp_path)
    assert java_home(NOWHERE) == home
    started = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-Da=b c", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "21." in started.stderr


def test_a_script_of_another_installation_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    script = java_home(NOWHERE) / "bin" / "java"
    script.write_text("#!/bin/sh\nexit 1\n")
    assert "exec" in (java_home(NOWHERE) / "bin" / "java").read_text()
    assert script.stat().st_mode & stat.S_IXUSR


def test_a_cache_that_cannot_be_written_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert java_home(NOWHERE).is_relative_to(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(blocked))
    with pytest.raises(JavaNotFoundError, match="make one of them writable"):
        java_home(NOWHERE)
