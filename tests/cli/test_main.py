"""The command line itself: flags become settings, and a user's mistake is one line and status 2."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from subprocess import PIPE

import pytest

from tailrace.cli import explain as explain_module
from tailrace.cli.main import main
from tailrace.config import Loaded, load, settings

SOURCE = Path(__file__).resolve().parents[2] / "src"


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the program in this process; returns its exit status."""
    monkeypatch.setattr(sys, "argv", ["tailrace", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


def test_flags_reach_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Loaded] = []
    monkeypatch.setattr(explain_module, "print_settings", seen.append)
    file = tmp_path / "t.toml"
    file.write_text("[api]\nport = 9\n")
    flags = ["--kv-memory", "1GiB", "--no-prefix-cache", "--api-key", "a", "--api-key", "b", "--config", str(file)]
    assert call(monkeypatch, "config", "explain", "some-model", *flags) == 0
    config = seen[0].config
    assert config.engine.model == "some-model"
    assert config.engine.kv_memory == 1 << 30
    assert config.engine.prefix_cache is False
    assert config.api.port == 9
    assert len(config.api.api_keys) == 2
    assert seen[0].origins["engine.threads"] == "default"


def test_a_mistake_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "serve", "--threads", "many") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    expected = "error: engine.threads = 'many' (--threads): accepted is a whole number from 0 to 1024\n"
    assert captured.err == expected


def test_the_version_as_a_command_and_as_a_flag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for word in ("version", "--version"):
        assert call(monkeypatch, word) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert said[0].startswith(f"tailrace {version('tailrace')}, kernels: ")


def test_explain_names_every_setting_its_value_and_its_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert call(monkeypatch, "config", "explain", "--kv-memory", "1.5GiB", "--api-key", "sk-secret") == 0
    out = capsys.readouterr().out
    rows = {line.split()[0]: line for line in out.splitlines()}
    knobs = {setting.name for setting in settings()}
    sections = tuple(f"{setting.section}." for setting in settings())
    assert {name for name in rows if name.startswith(sections)} == knobs
    assert "60 s" in rows["classes.interactive.queue_deadline"]
    assert rows["tenants"].split()[1:3] == ["(empty)", "default"]
    assert "1.5 GiB" in rows["engine.kv_memory"]
    assert "--kv-memory" in rows["engine.kv_memory"]
    assert "1 keys" in rows["api.api_keys"]
    assert "sk-secret" not in out


TABLES = """
[classes.interactive]
ttft = "500ms"

[[tenants]]
name = "acme"
weight = 3
limits.requests_per_minute = 60
keys = [{ name = "laptop", hash = "sha256:HASH", expires = 2027-01-31 }]

[[rules]]
class = "background"
tenant = "acme"
"""


def test_explain_shows_tenants_classes_and_rules_with_their_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.toml").write_text(TABLES.replace("HASH", "ab" * 32))
    assert call(monkeypatch, "config", "explain", "--config", "t.toml") == 0
    out = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert rows["classes.interactive.ttft"][:3] == ["0.5", "s", "t.toml"]
    assert rows["classes.interactive.queue_deadline"][:3] == ["60", "s", "default"]
    assert rows["tenants[0].name"][:2] == ["acme", "t.toml"]
    assert rows["tenants[0].weight"][:2] == ["3.0", "t.toml"]
    assert rows["tenants[0].mode"][:2] == ["strict", "default"]
    assert rows["tenants[0].limits.requests_per_minute"][:2] == ["60", "t.toml"]
    assert rows["tenants[0].limits.concurrency"][:2] == ["0", "default"]
    assert rows["tenants[0].keys[0].expires"][0].startswith("2027-01-31")
    assert rows["rules[0].class"][:2] == ["background", "t.toml"]
    assert rows["rules[0].tools"][:2] == ["either", "default"]
    assert "abab" not in out


def test_help_of_serve_lists_a_flag_for_every_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "serve", "--help") == 0
    out = capsys.readouterr().out
    shown = set(re.findall(r"--[a-z][a-z-]*", out))
    assert {setting.flag for setting in settings()} - shown == {"--model"}


def test_help_imports_nothing_heavy() -> None:
    """What --help loads decides how long it takes."""
    code = (
        "import sys; sys.argv = ['tailrace', '--help']\n"
        "from tailrace.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'rich', 'fastapi', 'pydantic', 'tokenizers', 'asyncio'} & sys.modules.keys()))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(SOURCE)}
    )
    assert result.stdout.splitlines()[-1] == "[]"


def test_python_m_tailrace_is_the_same_program() -> None:
    command = [sys.executable, "-m", "tailrace", "serve", "--port", "-1"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(SOURCE)})
    assert result.returncode == 2
    assert result.stderr == "error: api.port = '-1' (--port): accepted is a whole number from 0 to 65535\n"


def test_ctrl_c_before_anything_runs_shows_no_traceback(tmp_path: Path) -> None:
    """Typer, the first thing that takes time to import, is one that says when that begins and never ends."""
    (tmp_path / "typer.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(600)\n")
    environment = {"PYTHONPATH": f"{tmp_path}:{SOURCE}"}
    command = [sys.executable, "-m", "tailrace", "chat"]
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True, env=environment) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == -signal.SIGINT
        assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("serve", ""), "engine.model = '' (--model): accepted is text that is not empty"),
        (("serve", "--host", "300.1.2.3", "no-such-model"), "cannot listen on 300.1.2.3 port 8000: "),
        (("serve", "--host", "a" * 300, "no-such-model"), "cannot listen on aaa"),
        (("serve", "--host", ""), "api.host = '' (--host): accepted is text that is not empty"),
    ],
)
def test_settings_are_refused_before_a_model_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str
) -> None:
    assert call(monkeypatch, *flags) == 2
    assert said in capsys.readouterr().err


def test_models_ends_with_every_form_of_a_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert call(monkeypatch, "models", "--store", str(tmp_path)) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    forms = ("hf:ORG/REPO,", "hf:ORG/REPO:FILE", "hf:ORG/REPO@REVISION[:FILE]", ".gguf", "config.json")
    assert [form for form in forms if form not in last] == []


def test_a_value_is_shown_as_people_write_it() -> None:
    shown = {setting.name: explain_module.shown(setting.rule, value) for setting, value, _ in load(environ={}).rows()}
    assert shown["api.max_body_bytes"] == "8.0 MiB"
    assert shown["control.drain_timeout"] == "30 s"
    assert shown["engine.prefix_cache"] == "true"
    assert shown["engine.chat_template"] == "(empty)"
    assert shown["api.api_keys"] == "0 keys"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:secret@host:1/0", "redis://***@host:1/0"),
        ("redis://user:se@cret@host:1/0", "redis://***@host:1/0"),
        ("redis://host:1/0", "redis://host:1/0"),
        ("", "(empty)"),
    ],
)
def test_a_password_in_an_address_is_not_shown(url: str, shown: str) -> None:
    (setting,) = (each for each in settings() if each.name == "control.limits_url")
    assert explain_module.shown(setting.rule, url) == shown


def test_check_names_what_is_wrong_and_says_so_by_its_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "t.toml"
    file.write_text("[control]\nlong_prompt = 0\n[api]\nport = -1\n")
    assert call(monkeypatch, "config", "check", "--config", str(file)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "2 settings are wrong" in said.err
    assert "control.long_prompt" in said.err
    assert "api.port" in said.err
    wrong = (
        "--database",
        "mysql://me:secret@db/x",
        "--limits-url",
        "http://redis",
        "--otlp-endpoint",
        "collector:4318",
    )
    assert call(monkeypatch, "config", "check", *wrong) == 2
    said = capsys.readouterr()
    assert "3 settings are wrong" in said.err and "secret" not in said.err
    assert all(name in said.err for name in ("data.database", "control.limits_url", "observe.otlp_endpoint"))
    file.write_text('[[tenants]]\nname = "default"\n')
    assert call(monkeypatch, "config", "check", "--config", str(file), "--host", "0.0.0.0") == 0
    said = capsys.readouterr()
    assert "1 tenants, 0 rules, nothing is wrong" in said.out
    assert "no API key is set" in said.err
