"""Container image, compose files, systemd unit and manifests: what they say exists in OneLog.

Nothing is built or started here, as that takes docker, systemd and Kubernetes: the files are read.
"""

import asyncio
import configparser
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from onelog.config import Config
from onelog.config_sources import SETTINGS, load
from onelog.gateways.http.logins import OPEN
from onelog.replication.fixed import followers_port
from tests.commands.running import run
from tests.gateways.http.live import http

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
DOCKERFILE = EXAMPLES / "docker" / "Dockerfile"
PROBE = EXAMPLES / "docker" / "probe.py"
UNIT = EXAMPLES / "systemd" / "onelog.service"
MANIFESTS = EXAMPLES / "kubernetes" / "onelog.yaml"
COMPOSE = [EXAMPLES / "docker" / "compose.yaml", EXAMPLES / "cluster" / "compose.yaml"]
FILES = [DOCKERFILE, UNIT, MANIFESTS, *COMPOSE]
OF_COMMANDS = {"ONELOG_NAMESERVER"}
"""Read by commands; no setting of a server."""


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's, with what follows each."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in lines if line]


def instruction(name: str) -> str:
    """The last one of a kind, which is the one that counts."""
    return [rest for each, rest in instructions() if each == name][-1]


def image_environment() -> dict[str, str]:
    """What every container of the image is told."""
    pairs = (word.partition("=") for word in shlex.split(instruction("ENV")))
    return {name: value for name, _, value in pairs}


def containers(path: Path) -> dict[str, Any]:
    """Those of a compose file that run OneLog."""
    every: dict[str, Any] = yaml.safe_load(path.read_text())["services"]
    return {name: each for name, each in every.items() if each["image"] == "onelog"}


def manifests() -> dict[str, Any]:
    """What is given to Kubernetes, by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFESTS.read_text())}


def pod() -> dict[str, Any]:
    """The pod's specification."""
    found: dict[str, Any] = manifests()["StatefulSet"]["spec"]["template"]["spec"]
    return found


def unit() -> configparser.RawConfigParser:
    """The unit's sections."""
    parser = configparser.RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return parser


def environments() -> Iterator[tuple[str, dict[str, str]]]:
    """Who is started with which variables."""
    image = image_environment()
    yield "image", image
    for path in COMPOSE:
        for name, each in containers(path).items():
            given = {key: str(value) for key, value in each.get("environment", {}).items()}
            yield f"{path.parent.name}/{name}", image | given
    own = {each["name"]: each.get("value", each["name"].lower()) for each in pod_environment()}
    expand = re.compile(r"\$\((\w+)\)")
    yield "kubernetes", image | {k: expand.sub(lambda m: own[m[1]], v) for k, v in own.items()}
    yield "unit", dict(re.findall(r"^#\s+(ONELOG_\w+)=(\S+)$", UNIT.read_text(), re.MULTILINE))


def pod_environment() -> list[dict[str, Any]]:
    """The variables of the pod's container."""
    found: list[dict[str, Any]] = pod()["containers"][0]["env"]
    return found


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Every use of `onelog`, without its name: what is run, and what comments tell people to."""
    yield "image", json.loads(instruction("CMD"))
    for path in COMPOSE:
        for name, each in containers(path).items():
            yield f"{path.parent.name}/{name}", shlex.split(each["command"])
    yield "kubernetes", pod()["containers"][0]["args"]
    yield "unit", shlex.split(unit()["Service"]["ExecStart"])[1:]
    for path in FILES:
        said = r"^#.*(?:(?:exec .*|/bin/)onelog|`onelog) ([a-z][^`\n]*)"
        for line in re.findall(said, path.read_text(), re.MULTILINE):
            yield f"comment of {path.name}", shlex.split(line)


def known_ports() -> set[int]:
    """Where a server listens that was told nothing, and with replicas."""
    config = Config()
    replicated = replace(config, replication=replace(config.replication, replicas=3))
    ports = {each.default for key, each in SETTINGS.items() if key.endswith(".port")}
    more = {config.broker.second_port, followers_port(replicated)}
    return {int(port) for port in ports | more if port is not None and int(port) > 0}


def test_every_variable_is_a_setting_with_a_value_it_takes() -> None:
    for source, environment in environments():
        assert any(name.startswith("ONELOG_") for name in environment), source
        load(environ=environment)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_variable_that_is_mentioned_exists(path: Path) -> None:
    known = {each.environment for each in SETTINGS.values()} | OF_COMMANDS
    assert set(re.findall(r"ONELOG_[A-Z_]+", path.read_text())) <= known


def test_every_command_line_is_understood() -> None:
    lines = list(command_lines())
    assert len([source for source, _ in lines if source.startswith("comment")]) >= 3
    for source, words in lines:
        # Options are read before help is given.
        ended = run(*words, "--help")
        assert ended.code == 0, f"{source}: {words}: {ended.err}"
    assert run("up", "--no-such-option", "--help").code != 0


def test_every_port_is_one_that_is_listened_on() -> None:
    served = known_ports()
    assert {int(port) for port in instruction("EXPOSE").split()} == served
    single = served - {followers_port(load(overrides={"replication.replicas": 2}).config)}
    (only,) = containers(COMPOSE[0]).values()
    addresses = [each.split(":") for each in only["ports"]]
    assert {int(inside) for _, _, inside in addresses} == single
    assert {address for address, _, _ in addresses} == {"127.0.0.1"}
    for each in containers(COMPOSE[1]).values():
        assert {int(port.split(":")[-1]) for port in each.get("ports", [])} <= served
    inside = {each["name"]: each["containerPort"] for each in pod()["containers"][0]["ports"]}
    assert set(inside.values()) == single
    outside = {each["name"]: each["port"] for each in manifests()["Service"]["spec"]["ports"]}
    assert outside == inside


def test_nobody_is_let_in_before_there_are_users() -> None:
    told = dict(environments())
    for source in ("image", "docker/onelog", "kubernetes", "unit"):
        config = load(environ=told[source]).config
        assert config.broker.host == "0.0.0.0", source
        assert not config.security.anonymous, source
        assert not config.security.remote_admin, source
    assert "ONELOG_" not in "".join(unit()["Service"].values()), "the unit listens on loopback"


def test_the_image_is_small_and_runs_without_rights() -> None:
    names = [name for name, _ in instructions()]
    assert names.count("FROM") == 2
    final = instructions()[len(names) - 1 - names[::-1].index("FROM") :]
    assert final[0][1].endswith("-slim")
    copied = [rest.split() for name, rest in final if name == "COPY"]
    assert copied[0] == ["--from=build", "/opt/onelog", "/opt/onelog"]
    assert copied[1][0] == str(PROBE.relative_to(ROOT))
    assert instruction("USER") == "10001:10001"
    assert instruction("VOLUME") == instruction("WORKDIR") == "/data"
    assert json.loads(instruction("ENTRYPOINT")) == ["onelog"]
    options, _, command = instruction("HEALTHCHECK").partition("CMD ")
    assert all(word.startswith("--") for word in options.split())
    assert json.loads(command) == ["python", copied[1][1], OPEN[0]]


def test_what_the_image_is_built_of_is_there_and_enough() -> None:
    sources = [rest.split()[:-1] for name, rest in instructions() if name == "COPY"]
    plain = [word for words in sources for word in words if not words[0].startswith("--")]
    assert [word for word in plain if not (ROOT / word).exists()] == []
    project = (ROOT / "pyproject.toml").read_text()
    packages = re.findall(r'"([^"]+)"', re.findall(r"packages = \[([^\]]*)\]", project)[0])
    for package in [*packages, "pyproject.toml", "README.md", "LICENSE"]:
        assert any(package == word or package.startswith(f"{word}/") for word in plain), package


def test_compose_files_use_the_one_image() -> None:
    for path in COMPOSE:
        for name, each in containers(path).items():
            build = each["build"]
            folder = (path.parent / build["context"]).resolve()
            assert folder / build["dockerfile"] == DOCKERFILE, name
            is_broker = each["command"].split()[0] != "nameserver"
            assert is_broker != ("healthcheck" in each), name
    (only,) = containers(COMPOSE[0]).values()
    assert only["read_only"]
    assert only["cap_drop"] == ["ALL"]
    assert only["volumes"] == ["data:/data"]


def test_the_pod_has_no_rights_and_is_asked_how_it_is() -> None:
    spec = pod()
    (container,) = spec["containers"]
    user = int(instruction("USER").partition(":")[0])
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] == spec["securityContext"]["fsGroup"] == user
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    check = json.loads(instruction("HEALTHCHECK").partition("CMD ")[2])
    for name, path in (("startup", OPEN[0]), ("liveness", OPEN[0]), ("readiness", OPEN[1])):
        assert container[f"{name}Probe"]["exec"]["command"] == [*check[:-1], path]
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    claims = manifests()["StatefulSet"]["spec"]["volumeClaimTemplates"]
    assert [mounted[each["metadata"]["name"]] for each in claims] == ["/data"]
    assert manifests()["StatefulSet"]["spec"]["serviceName"] == "onelog"
    config = load(environ=dict(environments())["kubernetes"]).config
    assert config.broker.advertised_host == "pod.onelog.namespace.svc.cluster.local"


def test_the_unit_has_a_folder_and_a_user_of_its_own() -> None:
    found = unit()["Service"]
    assert found["DynamicUser"] == "yes"
    assert found["ExecStart"].endswith(f"--data %S/{found['StateDirectory']}")
    assert found["ProtectSystem"] == "strict"
    assert found["CapabilityBoundingSet"] == ""
    assert int(found["LimitNOFILE"]) > 20_000


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
async def test_the_probe_asks_a_running_broker(tmp_path: Path, mode: str) -> None:
    async def exit_code(path: str, port: int) -> int:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            PROBE,
            path,
            env={"ONELOG_HTTP_PORT": str(port)},
            stderr=subprocess.PIPE,
        )
        _, err = await process.communicate()
        assert err == b""
        return process.returncode or 0

    async with http(tmp_path, tls__mode=mode) as (server, _):
        port = server.config.http.port
        for path in OPEN[:2]:
            assert await exit_code(path, port) == 0
        assert await exit_code("/nothing", port) == 1
    assert await exit_code("/healthz", port) == 1
