"""Every setting, with the default that serves well unasked. One frozen dataclass per package.

The only module that reads the environment. `load` lays four sources over each other: the defaults, a TOML file,
`TAILRACE_<SECTION>_<KEY>` variables, and flags. It refuses unknown keys (naming the nearest known one) and values of
the wrong type or range (naming the key, the value, its source and what is accepted). API keys are kept as hashes only.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from tailrace.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Rule:
    """What a setting means and accepts. `unit` is "bytes", "seconds", "key" or nothing; bounds are inclusive."""

    help: str
    choices: tuple[str, ...] = ()
    unit: str = ""
    low: float | None = None
    high: float | None = None


def knob(default: object, help: str, **rule: Any) -> Any:
    """A dataclass field that carries its Rule."""
    return field(default=default, metadata={"rule": Rule(help, **rule)})


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What runs and in how much memory. 0 and "auto" mean: found out at start and printed."""

    model: str = knob("smollm2:135m", "name of a model, hf:ORG/REPO, or a path to a .gguf file or a model folder")
    served_name: str = knob("", "name that clients use; empty: the model's own")
    weights: str = knob("auto", "packed weights", choices=("auto", "int8", "bf16"))
    isa: str = knob("auto", "kernel variant; auto: the best this CPU runs")
    threads: int = knob(0, "native threads; 0: one per usable core", low=0, high=1024)
    kv_memory: int = knob(0, "memory for the KV cache; 0: from free memory", unit="bytes", low=0)
    max_context: int = knob(0, "tokens a sequence may have; 0: what the model was trained for", low=0)
    max_sequences: int = knob(32, "sequences running at once", low=1, high=1024)
    chunk_tokens: int = knob(0, "most prefill tokens in one step; 0: calibrated at start", low=0)
    prefix_cache: bool = knob(True, "reuse the KV blocks of shared prompt prefixes")
    chat_template: str = knob("", "Jinja file that replaces the model's own chat template")
    store: str = knob("", "model store folder; empty: $XDG_CACHE_HOME/tailrace")


@dataclass(frozen=True, slots=True)
class ControlConfig:
    """Who may wait. Requests beyond these bounds are refused with 429 and a Retry-After."""

    max_waiting_requests: int = knob(256, "requests that may wait", low=0)
    max_waiting_tokens: int = knob(262_144, "prompt tokens over all waiting requests", low=0)
    drain_timeout: float = knob(30.0, "time running requests get after SIGTERM", unit="seconds", low=0)


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """The HTTP door. `api_keys` holds SHA-256 hex digests after loading; empty: no authentication."""

    host: str = knob("127.0.0.1", "address to listen on")
    port: int = knob(8000, "port to listen on; 0: any free one", low=0, high=65_535)
    api_keys: tuple[str, ...] = knob((), "accepted key, or sha256:HEX of one; may be repeated", unit="key")
    api_key_file: str = knob("", "file of accepted keys, one a line; # starts a comment")
    max_body_bytes: int = knob(8 * 1024 * 1024, "largest request body", unit="bytes", low=1024)
    max_choices: int = knob(16, "largest n", low=1, high=1024)
    max_logprobs: int = knob(20, "largest number of alternatives per token", low=0, high=1024)
    max_stop_strings: int = knob(16, "stop strings in one request", low=1)
    max_prompts: int = knob(64, "prompts in one completions request", low=1)
    commit_after: float = knob(2.0, "a waiting stream is answered with 200 and pings after", unit="seconds", low=0)
    ping_interval: float = knob(10.0, "time between the pings of a waiting stream", unit="seconds", low=0.1)


@dataclass(frozen=True, slots=True)
class Config:
    engine: EngineConfig = field(default_factory=EngineConfig)
    control: ControlConfig = field(default_factory=ControlConfig)
    api: ApiConfig = field(default_factory=ApiConfig)


@dataclass(frozen=True, slots=True)
class Setting:
    """One knob of one section: where it lives, its type and its rule."""

    section: str
    key: str
    type: object
    rule: Rule

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}"

    @property
    def flag(self) -> str:
        """`--max-context`; a list's flag is singular and may be repeated."""
        word = self.key.removesuffix("s") if self.is_list else self.key
        return "--" + word.replace("_", "-")

    @property
    def is_list(self) -> bool:
        return self.type == tuple[str, ...]

    @property
    def accepts(self) -> str:
        """What may be written, for messages and help."""
        if self.rule.choices:
            return " | ".join(self.rule.choices)
        if self.type is bool:
            return "true | false"
        if self.type is str or self.is_list:
            return "text"
        return _KINDS.get(self.rule.unit, "a whole number" if self.type is int else "a number") + self._range()

    def _range(self) -> str:
        low, high = self.rule.low, self.rule.high
        if low is None and high is None:
            return ""
        return f" from {low:g} to {high:g}" if high is not None else f" of at least {low:g}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checked configuration and, for every setting, the source that had the last word."""

    config: Config
    origins: Mapping[str, str]  # "engine.threads" -> "default", a file, a variable or a flag

    def rows(self) -> Iterator[tuple[Setting, object, str]]:
        for setting in settings():
            yield setting, getattr(getattr(self.config, setting.section), setting.key), self.origins[setting.name]


_KINDS = {"bytes": "a size such as 4GiB, 512MB or 1048576", "seconds": "a time such as 30, 2.5s, 500ms or 1m"}
_BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_SIZES = {"": 1.0, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_TIMES = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_SCALES = {"bytes": _SIZES, "seconds": _TIMES}
_PREFIX = "TAILRACE_"
# Kubernetes writes these for every service, also for one that happens to be called tailrace.
_SERVICE_LINK = re.compile(r".*_(SERVICE_(HOST|PORT.*)|PORT_\d+_(TCP|UDP).*)=.*|.*_PORT=(tcp|udp)://.*")


def settings() -> Iterator[Setting]:
    """Every knob, in the order of the dataclasses."""
    for section in fields(Config):
        kind = get_type_hints(Config)[section.name]
        types = get_type_hints(kind)
        for item in fields(kind):
            yield Setting(section.name, item.name, types[item.name], item.metadata["rule"])


def load(file: str = "", environ: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None) -> Loaded:
    """Lay the sources over the defaults and check the result.

    `environ` defaults to the process environment; `flags` maps setting names ("engine.threads") to raw values.
    Raises ConfigError naming the key, the value and its source.
    """
    known = {setting.name: setting for setting in settings()}
    values: dict[str, object] = {}
    origins = dict.fromkeys(known, "default")
    for name, raw, origin in _sources(known, file, os.environ if environ is None else environ, flags or {}):
        values[name] = parse(known[name], raw, origin)
        origins[name] = origin
    config = _assemble(values)
    keys = _read_key_file(config.api.api_key_file) if config.api.api_key_file else ()
    return Loaded(replace(config, api=replace(config.api, api_keys=config.api.api_keys + keys)), origins)


def store_root(config: EngineConfig, environ: Mapping[str, str] | None = None) -> Path:
    """The folder of pulled models and packed weights."""
    if config.store:
        return Path(config.store).expanduser()
    cache = (os.environ if environ is None else environ).get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache else Path.home() / ".cache") / "tailrace"


def warnings(config: Config) -> list[str]:
    """What is allowed and probably not meant."""
    api = config.api
    if api.api_keys or api.host in ("127.0.0.1", "::1", "localhost"):
        return []
    return [f"{api.host} can be reached from other machines and no API key is set: add --api-key or --api-key-file"]


def parse(setting: Setting, raw: object, origin: str) -> object:
    """Turn a raw value (text, or a TOML value) into the setting's type; raises ConfigError."""
    try:
        value = _convert(setting, raw)
    except (ValueError, OverflowError):
        value = None
    if value is None or not _allowed(setting.rule, value):
        shown = "a value" if setting.rule.unit == "key" else repr(raw)  # a key never reaches a log
        raise ConfigError(f"{setting.name} = {shown} ({origin}): accepted is {setting.accepts}", param=setting.name)
    return value


def _sources(
    known: Mapping[str, Setting], file: str, environ: Mapping[str, str], flags: Mapping[str, object]
) -> Iterator[tuple[str, object, str]]:
    """(setting name, raw value, origin), weakest source first."""
    if file:
        for name, raw in _read_toml(Path(file)).items():
            yield _expect(name, known, file), raw, file
    variables = {_PREFIX + name.replace(".", "_").upper(): name for name in known}
    for variable in sorted(environ):
        if variable.startswith(_PREFIX) and not _SERVICE_LINK.fullmatch(f"{variable}={environ[variable]}"):
            _expect(variable, variables, "environment")
            yield variables[variable], environ[variable], variable
    for name, raw in flags.items():
        yield _expect(name, known, "flags"), raw, known[name].flag


def _expect(name: str, known: Mapping[str, object], origin: str) -> str:
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    raise ConfigError(f"unknown setting {name} ({origin}); the nearest known one is {near[0]}", param=name)


def _read_toml(path: Path) -> dict[str, object]:
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the settings file {path}: {error}", param="--config") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", param="--config") from error
    sections = [item.name for item in fields(Config)]
    flat: dict[str, object] = {}
    for section, entries in tree.items():
        if not isinstance(entries, dict):
            raise ConfigError(f"{path}: {section} stands outside a section ({', '.join(sections)})", param=section)
        _expect(section, dict.fromkeys(sections), str(path))
        flat.update({f"{section}.{key}": value for key, value in entries.items()})
    return flat


def _assemble(values: Mapping[str, object]) -> Config:
    sections = {}
    for item in fields(Config):
        prefix = item.name + "."
        given = {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
        sections[item.name] = get_type_hints(Config)[item.name](**given)
    return Config(**sections)


def _convert(setting: Setting, raw: object) -> object:
    """None or ValueError when `raw` does not fit."""
    if setting.is_list:
        return _key_hashes(raw.split(",") if isinstance(raw, str) else raw)
    if setting.type is str:
        return raw if isinstance(raw, str) else None
    if setting.type is bool:
        return _BOOLS.get(str(raw).lower())
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
        return None
    number = _number(str(raw), setting.rule.unit)
    if setting.type is float:
        return number
    return int(number) if number == int(number) else None


def _number(text: str, unit: str) -> float:
    """ "4GiB" -> 4294967296.0, "500ms" -> 0.5; ValueError on anything else."""
    match = re.fullmatch(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?|\.[0-9]+)\s*([a-zA-Z]*)\s*", text)
    if match is None:
        raise ValueError(text)
    amount, suffix = float(match[1].replace("_", "")), match[2].lower()
    scales = _SCALES.get(unit, {"": 1.0})
    if unit == "bytes":
        suffix = suffix.removesuffix("b")
    if suffix not in scales:
        raise ValueError(text)
    return amount * scales[suffix]


def _allowed(rule: Rule, value: object) -> bool:
    if rule.choices and value not in rule.choices:
        return False
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return True
    return (rule.low is None or value >= rule.low) and (rule.high is None or value <= rule.high)


def _key_hashes(keys: object) -> tuple[str, ...] | None:
    if not isinstance(keys, (list, tuple)):
        return None
    hashes = [_key_hash(key) for key in keys]
    return tuple(digest for digest in hashes if digest is not None) if None not in hashes else None


def _key_hash(key: object) -> str | None:
    """Digest of a key, or the one that `sha256:HEX` states; None for anything else."""
    if not isinstance(key, str) or not key.strip():
        return None
    if key.startswith("sha256:"):
        digest = key.removeprefix("sha256:").strip().lower()
        return digest if re.fullmatch(r"[0-9a-f]{64}", digest) else None
    return hashlib.sha256(key.strip().encode()).hexdigest()


def _read_key_file(name: str) -> tuple[str, ...]:
    """Keys of a file, hashed. A file without keys is refused: it would switch authentication off unnoticed."""
    try:
        lines = Path(name).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the API key file {name}: {error}", param="api.api_key_file") from error
    digests = []
    for number, line in enumerate(lines, start=1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        digest = _key_hash(key)
        if digest is None:
            raise ConfigError(f"{name} line {number}: after sha256: come 64 hex digits", param="api.api_key_file")
        digests.append(digest)
    if not digests:
        raise ConfigError(f"the API key file {name} holds no key", param="api.api_key_file")
    return tuple(digests)
