"""Where settings come from, which source wins, and how a wrong one is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tailrace.config import Config, load, settings, store_root, warnings
from tailrace.errors import ConfigError

DIGEST = hashlib.sha256(b"sk-one").hexdigest()


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_defaults_are_the_dataclasses_defaults() -> None:
    loaded = load(environ={})
    assert loaded.config == Config()
    assert set(loaded.origins.values()) == {"default"}


def test_each_source_overrides_the_one_before(tmp_path: Path) -> None:
    file = write(
        tmp_path / "t.toml",
        "[engine]\nthreads = 1\nmax_sequences = 5\n[api]\nport = 1\n[control]\ndrain_timeout = 1.5\n",
    )
    environ = {"TAILRACE_ENGINE_THREADS": "2", "TAILRACE_API_PORT": "2"}
    loaded = load(file, environ, {"engine.threads": "3"})
    assert loaded.config.engine.threads == 3
    assert loaded.config.api.port == 2
    assert loaded.config.engine.max_sequences == 5
    assert loaded.config.control.drain_timeout == 1.5
    assert loaded.origins["engine.threads"] == "--threads"
    assert loaded.origins["api.port"] == "TAILRACE_API_PORT"
    assert loaded.origins["engine.max_sequences"] == file
    assert loaded.origins["api.host"] == "default"


def test_rows_list_every_setting_with_its_value() -> None:
    rows = {setting.name: value for setting, value, _ in load(environ={}, flags={"engine.weights": "bf16"}).rows()}
    assert rows["engine.weights"] == "bf16"
    assert set(rows) == {setting.name for setting in settings()}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4GiB", 4 << 30),
        ("512MB", 512_000_000),
        ("1.5k", 1500),
        ("1048576", 1 << 20),
        (" 2 mib ", 2 << 20),
        ("1_000", 1000),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert load(environ={}, flags={"engine.kv_memory": text}).config.engine.kv_memory == count


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30.0), ("2.5s", 2.5), ("500ms", 0.5), ("1m", 60.0), ("1h", 3600.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert load(environ={}, flags={"control.drain_timeout": text}).config.control.drain_timeout == seconds


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("engine.threads", "two", "a whole number from 0 to 1024"),
        ("engine.threads", "1.5", "a whole number from 0 to 1024"),
        ("engine.threads", "9" * 400, "a whole number from 0 to 1024"),
        ("engine.kv_memory", 10**20, "a size such as 4GiB"),
        ("control.drain_timeout", "9" * 400, "a time such as 30"),
        ("control.drain_timeout", float("inf"), "a time such as 30"),
        ("control.deadline_chance", -1e-5, "a number from 0 to 1"),
        ("engine.max_sequences", 0, "a whole number from 1 to 1024"),
        ("engine.max_sequences", True, "a whole number from 1 to 1024"),
        ("engine.weights", "int3", "auto | int8 | bf16"),
        ("engine.prefix_cache", "maybe", "true | false"),
        ("engine.kv_memory", "4 bananas", "a size such as 4GiB"),
        ("engine.kv_memory", "-1", "a size such as 4GiB"),
        ("engine.model", 7, "text"),
        ("control.drain_timeout", "nan", "a time such as 30"),
        ("control.drain_timeout", "inf", "a time such as 30"),
        ("api.port", 65_536, "a whole number from 0 to 65535"),
    ],
)
def test_a_wrong_value_names_key_value_source_and_what_is_accepted(name: str, value: object, accepted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(environ={}, flags={name: value})
    assert caught.value.message.startswith(f"{name} = {value!r} (--")
    assert accepted in caught.value.message
    assert caught.value.param == name


def test_everything_that_is_wrong_is_named(tmp_path: Path) -> None:
    text = """
[control]
long_prompt = 0
nothing = 3
[nowhere]
x = 1
[[tenants]]
name = "a"
weight = -1
limits = {concurrency = -2, foo = 1}
[[tenants]]
name = "b"
mode = "loose"
[[rules]]
route = "chat"
"""
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path / "a.toml", text), {"TAILRACE_ENGINE_THREADS": "many"}, {"api.port": "x"})
    first, *lines = caught.value.message.splitlines()
    assert first == f"{len(lines)} settings are wrong:"
    named = (
        "nowhere", "control.long_prompt", "control.nothing", "engine.threads", "api.port", "tenants[0].weight",
        "tenants[0].limits.concurrency", "tenants[0].limits.foo", "tenants[1].mode", "rules[0].class",
    )  # fmt: skip
    assert len(lines) == len(caught.value.parts) == len(named)
    for name, line in zip(named, lines, strict=True):
        assert name in line


def test_unknown_keys_name_the_nearest_known_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting engine\.thread .*engine\.threads"):
        load(write(tmp_path / "a.toml", "[engine]\nthread = 1\n"), {})
    with pytest.raises(ConfigError, match=r"unknown setting engin .*engine"):
        load(write(tmp_path / "b.toml", "[engin]\nthreads = 1\n"), {})
    with pytest.raises(ConfigError, match=r"unknown setting TAILRACE_API_PROT .*TAILRACE_API_PORT"):
        load(environ={"TAILRACE_API_PROT": "1"})


def test_a_key_outside_a_section_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="port stands outside a section"):
        load(write(tmp_path / "a.toml", "port = 1\n"), {})


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml"):
        load(str(tmp_path / "absent.toml"), {})
    with pytest.raises(ConfigError, match=r"broken\.toml is not valid TOML"):
        load(write(tmp_path / "broken.toml", "[engine\n"), {})


@pytest.mark.parametrize("text", ["[engine]\nthreads = " + "9" * 5000, "x = " + "[" * 5000], ids=["digits", "depth"])
def test_what_the_reader_itself_breaks_at_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "t.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load(str(file), {})


def test_numbers_however_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text(
        "[engine]\ntpot_target = 0.00005\nkv_memory = 1e16\n[control]\ndeadline_chance = 5e-1", encoding="utf-8"
    )
    with pytest.raises(ConfigError, match="kv_memory"):
        load(str(file), {})
    file.write_text(file.read_text(encoding="utf-8").replace("1e16", "1e9"), encoding="utf-8")
    config = load(str(file), {}).config
    assert (config.engine.tpot_target, config.engine.kv_memory) == (0.00005, 1_000_000_000)
    assert config.control.deadline_chance == 0.5


def test_kubernetes_service_links_are_not_settings() -> None:
    environ = {
        "TAILRACE_SERVICE_HOST": "10.0.0.1",
        "TAILRACE_SERVICE_PORT": "8000",
        "TAILRACE_PORT": "tcp://10.0.0.1:8000",
        "TAILRACE_PORT_8000_TCP_ADDR": "10.0.0.1",
        "TAILRACE_API_PORT": "tcp://10.0.0.1:8000",
    }
    assert load(environ=environ).config == Config()


def test_api_keys_are_hashed_and_never_shown(tmp_path: Path) -> None:
    file = write(tmp_path / "keys", f"# team a\nsk-two\n\nsha256:{DIGEST.upper()}\n")
    config = load(environ={}, flags={"api.api_keys": ["sk-one"], "api.api_key_file": file}).config
    assert config.api.api_keys == (DIGEST, hashlib.sha256(b"sk-two").hexdigest(), DIGEST)
    with pytest.raises(ConfigError) as caught:
        load(environ={"TAILRACE_API_API_KEYS": "sha256:secret"})
    assert "secret" not in caught.value.message


def test_several_keys_in_one_variable() -> None:
    keys = load(environ={"TAILRACE_API_API_KEYS": "sk-one, sk-two"}).config.api.api_keys
    assert keys == (DIGEST, hashlib.sha256(b"sk-two").hexdigest())


@pytest.mark.parametrize("text", ["", "# only a comment\n", "sha256:12\n"])
def test_a_key_file_that_would_open_the_door_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="keys"):
        load(environ={}, flags={"api.api_key_file": write(tmp_path / "keys", text)})


def test_an_open_address_without_keys_is_warned_about() -> None:
    assert warnings(load(environ={}).config) == []
    assert "0.0.0.0" in warnings(load(environ={}, flags={"api.host": "0.0.0.0"}).config)[0]
    assert warnings(load(environ={}, flags={"api.host": "0.0.0.0", "api.api_keys": ["k"]}).config) == []


def test_store_root() -> None:
    engine = Config().engine
    assert store_root(engine, {"XDG_CACHE_HOME": "/cache"}) == Path("/cache/tailrace")
    assert store_root(engine, {}) == Path.home() / ".cache" / "tailrace"
    chosen = load(environ={}, flags={"engine.store": "~/models"}).config.engine
    assert store_root(chosen, {}) == Path.home() / "models"


def test_knobs_stay_few_and_their_flags_distinct() -> None:
    flags = [setting.flag for setting in settings()]
    assert len(flags) < 70
    assert len(set(flags)) == len(flags)
