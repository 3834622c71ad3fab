"""Groups of commands that are made when somebody wants one of them."""

import sys
from types import ModuleType

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from onelog import cli
from onelog.cli import LazyGroup, add_lazily

runner = CliRunner()


@pytest.fixture
def small_app(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    lamps = typer.Typer()

    @lamps.command("on")
    def switch_on(room: str) -> None:
        """Give light."""
        print(f"light in the {room}")

    @lamps.command("off")
    def switch_off() -> None:
        """Save power."""

    app = typer.Typer()
    app.command("other")(switch_off)
    add_lazily(app, "lamp", "Lamps of all sorts.")
    module = ModuleType("onelog.commands.lamp")
    monkeypatch.setattr(module, "app", lamps, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return app


def test_a_group_looks_and_works_as_always(small_app: typer.Typer) -> None:
    app = small_app
    assert "Lamps of all sorts." in runner.invoke(app, ["--help"]).stdout
    for arguments in (["lamp", "--help"], ["lamp"]):
        shown = runner.invoke(app, arguments).stdout
        assert "Give light." in shown
        assert "Save power." in shown
    assert runner.invoke(app, ["lamp", "on", "hall"]).stdout == "light in the hall\n"
    wrong = runner.invoke(app, ["lamp", "onn", "hall"])
    assert wrong.exit_code == 2
    assert "No such command 'onn'" in wrong.output


def test_commands_are_not_made_before_they_are_wanted(small_app: typer.Typer) -> None:
    group = get_command(small_app)
    assert isinstance(group, TyperGroup)
    lamp = group.commands["lamp"]
    assert isinstance(lamp, LazyGroup)
    assert lamp._made is None
    assert sorted(lamp.commands) == ["off", "on"]
    assert lamp.commands is lamp.commands


def test_every_command_of_ours_can_be_made_and_says_what_it_does() -> None:
    group = get_command(cli.app)
    assert isinstance(group, TyperGroup)
    names = []
    for name, command in group.commands.items():
        inner = command.commands if isinstance(command, TyperGroup) else {"": command}
        for each, made in inner.items():
            names.append(f"{name} {each}".strip())
            assert made.help, names[-1]
    assert len(names) > 40
    assert {"topic list", "group reset", "message trace", "produce", "store verify"} <= {*names}
