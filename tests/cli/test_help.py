"""Help says how each command is used, in lines that work; shells complete commands and models."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from tailrace.cli.complete import model_names
from tailrace.cli.main import DEFAULT_MODEL, app


def commands(group: TyperGroup, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every command by its words."""
    found: dict[tuple[str, ...], Any] = {}
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            found |= commands(command, (*path, name))
        else:
            found[(*path, name)] = command
    return found


def root() -> TyperGroup:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return group


COMMANDS = commands(root())


def example_lines(command: Any) -> list[str]:
    _, _, lines = (command.epilog or "").partition("Examples:\n")
    return [line.strip() for line in lines.splitlines() if line.strip()]


@pytest.mark.parametrize("words", sorted(COMMANDS), ids=" ".join)
def test_every_command_has_help_and_examples_of_itself(words: tuple[str, ...]) -> None:
    command = COMMANDS[words]
    assert command.help
    shown = example_lines(command)
    assert shown[0].startswith(" ".join(("tailrace", *words)))
    text = CliRunner().invoke(app, [*words, "--help"]).output
    assert all(f"\n    {line}\n" in f"{text}\n" for line in shown), text


@pytest.mark.parametrize("words", sorted(COMMANDS), ids=" ".join)
def test_examples_can_be_parsed(words: tuple[str, ...]) -> None:
    """Flags and arguments exist; nothing is run."""
    for line in example_lines(COMMANDS[words]):
        arguments = shlex.split(line.split(" | ")[0])
        if arguments[: len(words) + 1] == ["tailrace", *words]:
            context = COMMANDS[words].make_context(" ".join(words), arguments[len(words) + 1 :])
            assert context.args == []


def test_models_are_completed_by_name_and_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("folder/big.gguf", "flat.gguf", "flat.txt", ".hidden.gguf"):
        (tmp_path / name).touch()
    assert DEFAULT_MODEL in model_names("")
    assert model_names(DEFAULT_MODEL[:4]) == [DEFAULT_MODEL]
    assert model_names("f") == ["folder/", "flat.gguf"]
    assert model_names("folder/") == ["folder/big.gguf"]
    assert model_names(f"{tmp_path}/fl") == [f"{tmp_path}/flat.gguf"]
    assert model_names("absent/") == []


@pytest.mark.parametrize(
    ("line", "offered"),
    [("tailrace do", ["doctor"]), (f"tailrace serve {DEFAULT_MODEL[:3]}", [DEFAULT_MODEL]), ("tailrace pull zz", [])],
)
def test_the_shell_is_offered(line: str, offered: list[str], tmp_path: Path) -> None:
    """The protocol between bash and the program, as the installed script speaks it."""
    last = str(len(line.split()) - 1)
    environ = {**os.environ, "_TAILRACE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": last}
    code = "from tailrace.cli.main import app; app(prog_name='tailrace')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stdout.split() == offered, done.stderr


def test_completion_can_be_installed(tmp_path: Path) -> None:
    environ = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    code = "from tailrace.cli.main import app; app(prog_name='tailrace')"
    command = [sys.executable, "-c", code, "--install-completion", "bash"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    scripts = list(tmp_path.rglob("tailrace.sh"))
    assert len(scripts) == 1
    assert "_TAILRACE_COMPLETE=complete_bash" in scripts[0].read_text()
    assert re.search(r"tailrace\.sh", (tmp_path / ".bashrc").read_text())
