"""The scripts of `examples/cluster`, with a real etcd: started, restarted one by one, grown."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "cluster"


@pytest.mark.e2e
def test_a_cluster_is_started_restarted_grown_and_stopped_by_scripts(tmp_path: Path) -> None:
    if shutil.which("etcd") is None:
        pytest.skip("no etcd on this machine (Debian: apt-get install etcd-server)")
    onelog = tmp_path / "onelog"
    onelog.write_text(f'#!/bin/sh\nexec {sys.executable} -m onelog "$@"\n')
    onelog.chmod(0o755)
    small = "store.segment_bytes=4194304 store.index_slots=1000 store.index_entries=4000"
    small += " store.disk_force_percent=99 store.disk_clean_percent=98 store.disk_refuse_percent=99"
    first = [free_port(50) for _ in range(4)]
    environment = {
        **os.environ,
        "ONELOG": str(onelog),
        "DATA": str(tmp_path / "data"),
        "FIRST_PORT": str(first[0]),
        "FIRST_KAFKA_PORT": str(first[1]),
        "FIRST_NAMESERVER_PORT": str(first[2]),
        "FIRST_ETCD_PORT": str(first[3]),
        "MORE": " ".join(f"--set {each}" for each in small.split()),
        "COLUMNS": "200",
    }

    def run(script: str, *arguments: str) -> str:
        done = subprocess.run(
            [FOLDER / script, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def command(*words: str, text: str = "") -> str:
        at = f"127.0.0.1:{first[2]}"
        done = subprocess.run(
            [onelog, *words, "-n", at],
            env=environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    try:
        assert "in sync 0, 1, 2 of 3" in run("start.sh")
        lines = "".join(f"{number}\n" for number in range(100))
        assert "100 sent" in command("produce", "orders", text=lines)
        assert "in sync 0, 1, 2 of 3" in run("rolling-restart.sh")
        assert "in sync 0, 1, 2, 3 of 4" in run("add-replica.sh", "3")
        read = command("consume", "orders", "--count", "100", "--bodies")
        assert sorted(read.split()) == sorted(lines.split())
    finally:
        run("stop.sh")
