"""Declared pipelines: tables and sinks that Spark keeps up to date, with topics at both ends.

A pipeline is a folder for Spark Declarative Pipelines (`spark-pipelines`, PySpark 4.1 and later):
`spark-pipeline.yml` names it, and `transformations` has its tables, in Python and SQL. What it has
made so far (tables, their catalog, and how far streams are) lies in the folder as well.

Invariant: a second run of the same folder goes on where the first one ended. This needs a catalog
that outlives the run, and that has to be chosen before Spark starts: in `spark-pipeline.yml` it
comes too late, and of several `--conf` of `spark-pipelines` only one arrives (PySpark 4.3). So
settings go the way of all of PySpark's own: `PYSPARK_SUBMIT_ARGS`.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib import util
from pathlib import Path

from onelog.errors import ConfigError
from onelog.spark.folders import local_folder
from onelog.spark.java import java_home
from onelog.spark.link import ENVIRONMENT
from onelog.spark.session import EVERYWHERE

SPEC = "spark-pipeline.yml"
STORAGE = "storage"
WAREHOUSE = "spark-warehouse"
TEMPLATE = Path(__file__).parent / "pipeline_template"
_NAME = re.compile(r"[A-Za-z0-9_-]+")

CONF = {
    **EVERYWHERE,
    # The default one forgets its tables, and their files are then in the way of the next run.
    "spark.sql.catalogImplementation": "hive",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # What fails is told by the pipeline's own lines. As an error, Spark logs that the session which
    # it has just closed is closed.
    "spark.log.level": "FATAL",
}


def init(folder: Path) -> Sequence[Path]:
    """Make a pipeline that works: the files that were written."""
    folder = local_folder("pipeline", folder)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is there already, and not empty: name another folder")
    name = folder.absolute().name
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"a pipeline is named like its folder, with letters, digits, _ and -: {name}"
        )
    storage = folder.absolute() / STORAGE
    storage.mkdir(parents=True)
    written = []
    for source in sorted(TEMPLATE.rglob("*")):
        if source.suffix not in (".py", ".sql", ".yml"):
            continue
        target = folder / source.relative_to(TEMPLATE)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text()
        target.write_text(text.replace("{{name}}", name).replace("{{storage}}", storage.as_uri()))
        written.append(target)
    return written


def command(
    folder: Path,
    *,
    master: str | None = None,
    remote: str | None = None,
    full_refresh: bool = False,
    dry_run: bool = False,
) -> list[str]:
    """The command line that runs the pipeline of a folder; to be run in that folder."""
    spec = local_folder("pipeline", folder) / SPEC
    if not spec.is_file():
        raise ConfigError(f"{folder} is no pipeline: it has no {SPEC} (onelog pipeline init)")
    if master is not None and remote is not None:
        raise ConfigError("master and remote exclude each other: keep one of them")
    for package in ("yaml", "grpc", "grpc_status"):
        if util.find_spec(package) is None:
            raise ConfigError(
                f"pipelines need {package}, which is missing: pip install 'onelog[pipelines]'"
            )
    words = [str(_program()), "dry-run" if dry_run else "run", "--spec", SPEC]
    if full_refresh and not dry_run:
        words.append("--full-refresh-all")
    if master is not None and not master.startswith("local"):
        raise ConfigError(
            f"a declared pipeline runs on this machine (--master local[2]) or on a Connect server "
            f"(--remote sc://host:15002), and not on {master}"
        )
    return [*words, "--remote", remote or master or "local[*]"]


def environment(given: Mapping[str, str], link: Mapping[str, str]) -> dict[str, str]:
    """What the command finds in its environment; `link` is how its sources reach the cluster."""
    conf = [word for pair in CONF.items() for word in ("--conf", "=".join(pair))]
    return {
        "SPARK_LOCAL_IP": "127.0.0.1",
        **{name: value for name, value in given.items() if name not in ENVIRONMENT.values()},
        **{ENVIRONMENT[name]: value for name, value in link.items() if name in ENVIRONMENT},
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(_program().parent.parent),
        "PYSPARK_SUBMIT_ARGS": shlex.join([*conf, "pyspark-shell"]),
    }


def forget(folder: Path) -> None:
    """Remove everything that runs have made; the definitions stay."""
    for name in (WAREHOUSE, "metastore_db"):
        shutil.rmtree(folder / name, ignore_errors=True)
    shutil.rmtree(folder / STORAGE, ignore_errors=True)
    (folder / STORAGE).mkdir()


def _program() -> Path:
    import pyspark

    found = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
    if not found.is_file():
        raise ConfigError(
            f"PySpark {pyspark.__version__} has no declared pipelines: pip install 'pyspark>=4.1'"
        )
    return found
