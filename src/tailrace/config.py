"""Every setting, with the default that serves well unasked. One frozen dataclass per package.

The only module that reads the environment. `load` lays four sources over each other: the defaults, a TOML file,
`TAILRACE_<SECTION>_<KEY>` variables, and flags; tenants, classes and rules are tables of the file (`policy`). It
refuses unknown keys (naming the nearest known one) and values of the wrong type or range (naming the key, the value,
its source and what is accepted). API keys are kept as hashes only.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from tailrace.errors import ConfigError
from tailrace.frozen import frozen
from tailrace.knobs import Mistakes, Rule, convert, knob
from tailrace.policy import TABLES, Policy, read_policy


@frozen
class EngineConfig:
    """What runs and in how much memory. 0 and "auto" mean: found out at start and printed."""

    model: str = knob(
        "smollm2:135m", "name of a model, hf:ORG/REPO, or a path to a .gguf file or a model folder", filled=True
    )
    more_models: tuple[str, ...] = knob((), "another model, loaded when it is asked for; may be repeated")
    keep_alive: float = knob(
        0.0, "a model that nobody uses is unloaded after; 0: never", unit="seconds", low=0, live=True
    )
    models_memory: int = knob(0, "memory for the weights and KV caches of all models; 0: no bound", unit="bytes", low=0)
    served_name: str = knob("", "name that clients use for the first model; empty: its own")
    weights: str = knob("auto", "packed weights", choices=("auto", "int8", "bf16"))
    kv: str = knob("auto", "stored keys and values; auto: int8 where accurate", choices=("auto", "int8", "bf16"))
    isa: str = knob("auto", "kernel variant; auto: the best this CPU runs")
    threads: int = knob(0, "native threads; 0: one per usable core", low=0, high=1024)
    ranks: int = knob(0, "shares of the model, each with its threads; 0: one per memory node", low=0, high=64)
    kv_memory: int = knob(0, "memory for the KV cache; 0: from free memory", unit="bytes", low=0)
    max_context: int = knob(0, "tokens a sequence may have; 0: what the model was trained for", low=0)
    max_sequences: int = knob(32, "sequences running at once", low=1, high=1024)
    chunk_tokens: int = knob(0, "most prefill tokens in one step; 0: calibrated at start", low=0)
    speculate: str = knob("auto", "guess tokens, verify them in one step", choices=("off", "lookup", "auto"))
    draft_model: str = knob("", "a smaller model of the same vocabulary that guesses too, as model names it")
    tpot_target: float = knob(0.0, "longest step beside running answers; 0: as measured", unit="seconds", low=0)
    prefix_cache: bool = knob(True, "reuse the KV blocks of shared prompt prefixes")
    chat_template: str = knob("", "Jinja file that replaces the first model's own chat template")
    tool_parser: str = knob(
        "auto",
        "how the model writes tool calls; auto: as its template has them",
        choices=("auto", "hermes", "llama3", "mistral", "json", "pythonic"),
    )
    reasoning_parser: str = knob(
        "auto",
        "marks around what the model thinks; auto: as its template has them",
        choices=("auto", "none", "think", "thought", "mistral"),
    )
    store: str = knob("", "model store folder; empty: $XDG_CACHE_HOME/tailrace")


@frozen
class ControlConfig:
    """Who may wait. Requests beyond these bounds are refused with 429 and a Retry-After."""

    max_waiting_requests: int = knob(256, "requests that may wait", low=0, live=True)
    max_waiting_tokens: int = knob(262_144, "prompt tokens over all waiting requests", low=0, live=True)
    max_deferred: int = knob(1000, "requests of a tenant that may be jobs at once, background responses too", low=0)
    long_prompt: int = knob(1024, "uncached prompt tokens from which a request is of class long", low=1, live=True)
    long_output: int = knob(
        1024, "expected tokens of an answer from which a request is of class long", low=1, live=True
    )
    deadline_chance: float = knob(
        0.5, "a request less likely to meet its deadline is refused at once", low=0, high=1, live=True
    )
    limits_url: str = knob(
        "", "redis://HOST:PORT/DB keeps tenants' limits for several gateways; empty: in process", unit="url"
    )
    limits_lease: float = knob(30.0, "time after which a dead gateway's holds in Redis are free", unit="seconds", low=1)
    limits_timeout: float = knob(1.0, "longest wait for Redis, of a whole call", unit="seconds", low=0.001)
    limits_down: str = knob(
        "refuse",
        "what has limits while Redis does not answer; admit: unchecked",
        choices=("refuse", "admit"),
        live=True,
    )
    job_lines: int = knob(
        0, "lines of jobs that run at once; 0: half of the sequences, few beside other requests", low=0
    )
    drain_timeout: float = knob(30.0, "time running requests get after SIGTERM", unit="seconds", low=0, live=True)
    stall_timeout: float = knob(
        30.0,
        "an engine without progress for that long, or 30 steps, is restarted; 0: never",
        unit="seconds",
        low=0,
        live=True,
    )
    max_restarts: int = knob(
        3, "restarts of an engine in 10 minutes; then the process ends with status 1", low=0, live=True
    )


@frozen
class ApiConfig:
    """The HTTP door. `api_keys` holds SHA-256 hex digests after loading; empty: no authentication."""

    host: str = knob("127.0.0.1", "address to listen on", filled=True)
    port: int = knob(8000, "port to listen on; 0: any free one", low=0, high=65_535)
    api_keys: tuple[str, ...] = knob((), "accepted key, or sha256:HEX of one; may be repeated", unit="key", live=True)
    admin_keys: tuple[str, ...] = knob((), "as api keys, for /admin routes too; may be repeated", unit="key", live=True)
    api_key_file: str = knob("", "file of accepted keys, one a line; # starts a comment", live=True)
    loras: tuple[str, ...] = knob((), "NAME=PATH of an adapter (PEFT's folder) on the first model; may be repeated")
    lora_folder: str = knob("", "folder from which adapters may be loaded while serving; empty: none are")
    max_body_bytes: int = knob(8 * 1024 * 1024, "largest request body", unit="bytes", low=1024, live=True)
    max_file_bytes: int = knob(200 * 1024 * 1024, "largest file of /v1/files", unit="bytes", low=1024)
    max_choices: int = knob(16, "largest n", low=1, high=1024, live=True)
    max_logprobs: int = knob(20, "largest number of alternatives per token", low=0, high=1024, live=True)
    max_stop_strings: int = knob(16, "stop strings in one request", low=1, live=True)
    max_prompts: int = knob(64, "prompts in one completions request", low=1, live=True)
    response_memory: int = knob(
        64 * 1024 * 1024, "memory for /v1/responses that wait to be kept, or are kept in memory", unit="bytes", low=0
    )
    stream_memory: int = knob(64 * 1024 * 1024, "memory for events of streams that can be resumed", unit="bytes", low=0)
    stream_grace: float = knob(
        30.0, "a resumable stream without a reader is ended after, and forgotten as long after its end",
        unit="seconds", low=0,
    )  # fmt: skip
    webhook_hosts: tuple[str, ...] = knob(
        (), "HOST (its https port) or HOST:PORT that webhooks may go to; may be repeated; none: no webhooks"
    )
    commit_after: float = knob(
        2.0, "a waiting stream is answered with 200 and pings after", unit="seconds", low=0, live=True
    )
    ping_interval: float = knob(10.0, "time between the pings of a waiting stream", unit="seconds", low=0.1, live=True)


@frozen
class DataConfig:
    """What outlives the process, and where."""

    data_folder: str = knob("", "folder of the database and of what waits for it; empty: $XDG_STATE_HOME/tailrace")
    database: str = knob(
        "",
        "sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME; none: nothing is kept; empty: SQLite in the folder",
        unit="url",
    )
    ledger_retention: float = knob(
        400 * 86400.0, "rows of the ledger and of the audit log are forgotten after; 0: never", unit="seconds", low=0
    )
    ledger_spill: int = knob(
        256 * 1024 * 1024, "file in the folder for rows that the database cannot take now", unit="bytes", low=0
    )
    response_retention: float = knob(
        30 * 86400.0, "responses of /v1/responses are forgotten after; 0: never", unit="seconds", low=0
    )


@frozen
class ObserveConfig:
    """What is told of requests, and to whom. No text of prompts or answers is in any of it."""

    log_level: str = knob(
        "warning",
        "least level of log lines; info: a line per request too",
        choices=("debug", "info", "warning", "error"),
    )
    log_format: str = knob("text", "how log lines are written, to stderr", choices=("text", "json"))
    otlp_endpoint: str = knob(
        "", "http://HOST:4318 of an OpenTelemetry collector for traces and metrics; empty: none", unit="url"
    )
    otlp_headers: tuple[str, ...] = knob((), "NAME=VALUE sent to it, as its token; may be repeated", unit="secret")
    trace_ratio: float = knob(
        1.0, "part of the requests whose trace is sent; failed and late ones always are", low=0, high=1
    )


@frozen
class Config:
    engine: EngineConfig = field(default_factory=EngineConfig)
    control: ControlConfig = field(default_factory=ControlConfig)
    api: ApiConfig = field(default_factory=ApiConfig)
    data: DataConfig = field(default_factory=DataConfig)
    observe: ObserveConfig = field(default_factory=ObserveConfig)
    policy: Policy = field(default_factory=Policy)  # from tables of the file; no knobs


_SECTIONS = ("engine", "control", "api", "data", "observe")


@frozen
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
        return self.rule.accepts(self.type)


@frozen
class Loaded:
    """A checked configuration and, for every setting, the source that had the last word. `file` and the `tables` of it
    are what the policy was read from. `again` reads the same sources as they are now; it raises ConfigError."""

    config: Config
    origins: Mapping[str, str]  # "engine.threads" -> "default", a file, a variable or a flag
    file: str = ""
    tables: Mapping[str, object] = field(default_factory=dict)
    again: Callable[[], Loaded] | None = None

    @classmethod
    def of(cls, config: Config) -> Loaded:
        """Of a program that has made it itself."""
        return cls(config, {setting.name: "program" for setting in settings()})

    def rows(self) -> Iterator[tuple[Setting, object, str]]:
        for setting in settings():
            yield setting, getattr(getattr(self.config, setting.section), setting.key), self.origins[setting.name]


def taken_over(now: Config, wanted: Config) -> tuple[Config, list[str], list[str]]:
    """`wanted`, as far as a running server can take it over from `now`; the names of what changes, and of what would
    need a restart. Tables are taken over whole."""
    sections: dict[str, Any] = {}
    changed: list[str] = []
    left: list[str] = []
    for setting in settings():
        before, after = (getattr(getattr(each, setting.section), setting.key) for each in (now, wanted))
        if before == after:
            continue
        (changed if setting.rule.live else left).append(setting.name)
        if setting.rule.live:
            sections.setdefault(setting.section, {})[setting.key] = after
    changed += sorted(name for name in TABLES if getattr(now.policy, name) != getattr(wanted.policy, name))
    merged = {name: replace(getattr(now, name), **values) for name, values in sections.items()}
    return replace(now, **merged, policy=wanted.policy), changed, left


_PREFIX = "TAILRACE_"
_DAY, _MONTH = 86_400.0, 31 * 86_400.0  # seconds
# Kubernetes writes these for every service, also for one that happens to be called tailrace.
_SERVICE_LINK = re.compile(r".*_(SERVICE_(HOST|PORT.*)|PORT_\d+_(TCP|UDP).*)=.*|.*_PORT=(tcp|udp)://.*")


def settings() -> Iterator[Setting]:
    """Every knob, in the order of the dataclasses."""
    for section in _SECTIONS:
        kind = get_type_hints(Config)[section]
        types = get_type_hints(kind)
        for item in fields(kind):
            yield Setting(section, item.name, types[item.name], item.metadata["rule"])


def load(file: str = "", environ: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None) -> Loaded:
    """Lay the sources over the defaults and check the result.

    `environ` defaults to the process environment; `flags` maps setting names ("engine.threads") to raw values.
    Raises ConfigError naming the key, the value and its source, for all that is wrong.
    """
    known = {setting.name: setting for setting in settings()}
    values: dict[str, object] = {}
    origins = dict.fromkeys(known, "default")
    tree = _read_toml(Path(file)) if file else {}
    mistakes, policy = Mistakes(), Policy()
    given = _sources(known, (file, tree), os.environ if environ is None else environ, flags or {}, mistakes)
    for name, raw, origin in given:
        with mistakes.noted():
            values[name] = parse(known[name], raw, origin)
        origins[name] = origin
    with mistakes.noted():
        policy = read_policy(tree, file)
    mistakes.tell()
    config = _assemble(values, policy)
    keys = _read_key_file(config.api.api_key_file) if config.api.api_key_file else ()
    config = replace(config, api=replace(config.api, api_keys=config.api.api_keys + keys))
    tables = {name: table for name, table in tree.items() if name in TABLES}
    return Loaded(config, origins, file, tables, lambda: load(file, environ, flags))


def store_root(config: EngineConfig, environ: Mapping[str, str] | None = None) -> Path:
    """The folder of pulled models and packed weights."""
    if config.store:
        return Path(config.store).expanduser()
    cache = (os.environ if environ is None else environ).get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache else Path.home() / ".cache") / "tailrace"


def data_root(config: DataConfig, environ: Mapping[str, str] | None = None) -> Path:
    """The folder of what outlives the process."""
    if config.data_folder:
        return Path(config.data_folder).expanduser()
    state = (os.environ if environ is None else environ).get("XDG_STATE_HOME", "")
    return (Path(state) if state else Path.home() / ".local" / "state") / "tailrace"


def database_of(config: DataConfig, environ: Mapping[str, str] | None = None) -> str:
    """The database's URL; empty where nothing is to be kept."""
    if config.database == "none":
        return ""
    return config.database or f"sqlite:///{data_root(config, environ) / 'tailrace.db'}"


def warnings(config: Config) -> list[str]:
    """What is allowed and probably not meant."""
    return [*_open_door(config), *_forgotten_budgets(config)]


def _open_door(config: Config) -> list[str]:
    api = config.api
    keys = api.api_keys or api.admin_keys or any(tenant.keys for tenant in config.policy.tenants)
    if keys or api.host in ("127.0.0.1", "::1", "localhost"):
        return []
    return [f"{api.host} can be reached from other machines and no API key is set: add --api-key or --api-key-file"]


def _forgotten_budgets(config: Config) -> list[str]:
    """Budgets of money that a restart begins anew."""
    tenants = config.policy.tenants
    quotas = [*(tenant.limits for tenant in tenants), *(key.limits for tenant in tenants for key in tenant.keys)]
    longest = max((_MONTH if q.money_per_month else _DAY if q.money_per_day else 0.0 for q in quotas), default=0.0)
    if not longest or config.control.limits_url:
        return []
    if config.data.database == "none":
        return ["budgets of money begin anew with each start: --database none keeps nothing of what was spent"]
    if 0 < config.data.ledger_retention < longest:
        return [f"budgets of money forget at a restart what --ledger-retention forgets: keep {longest / _DAY:.0f} days"]
    return []


def parse(setting: Setting, raw: object, origin: str) -> object:
    """Turn a raw value (text, or a TOML value) into the setting's type; raises ConfigError."""
    try:
        value = _convert(setting, raw)
    except (ValueError, OverflowError):
        value = None
    if value is None or not setting.rule.allows(value):
        shown = "a value" if setting.rule.secret else repr(raw)
        raise ConfigError(f"{setting.name} = {shown} ({origin}): accepted is {setting.accepts}", param=setting.name)
    return value


def _sources(
    known: Mapping[str, Setting],
    file: tuple[str, Mapping[str, object]],
    environ: Mapping[str, str],
    flags: Mapping[str, object],
    mistakes: Mistakes,
) -> Iterator[tuple[str, object, str]]:
    """(setting name, raw value, origin), weakest source first. `file` is its name and what it holds. Names that are
    none are noted and left out."""
    for name, raw in _flat(file[1], file[0], mistakes).items():
        with mistakes.noted():
            yield _expect(name, known, file[0]), raw, file[0]
    variables = {_PREFIX + name.replace(".", "_").upper(): name for name in known}
    for variable in sorted(environ):
        if variable.startswith(_PREFIX) and not _SERVICE_LINK.fullmatch(f"{variable}={environ[variable]}"):
            with mistakes.noted():
                _expect(variable, variables, "environment")
                yield variables[variable], environ[variable], variable
    for name, raw in flags.items():
        with mistakes.noted():
            yield _expect(name, known, "flags"), raw, known[name].flag


def _expect(name: str, known: Mapping[str, object], origin: str) -> str:
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    raise ConfigError(f"unknown setting {name} ({origin}); the nearest known one is {near[0]}", param=name)


def _read_toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the settings file {path}: {error}", param="--config") from error
    except (ValueError, RecursionError) as error:  # besides its own: numbers of thousands of digits, depths of lists
        raise ConfigError(f"{path} is not valid TOML: {error}", param="--config") from error


def _flat(tree: Mapping[str, object], path: str, mistakes: Mistakes) -> dict[str, object]:
    """{"engine": {"threads": 1}} -> {"engine.threads": 1}."""
    flat: dict[str, object] = {}
    for section, entries in tree.items():
        if section in TABLES:
            continue
        with mistakes.noted():
            if not isinstance(entries, dict):
                text = f"{path}: {section} stands outside a section ({', '.join(_SECTIONS)})"
                raise ConfigError(text, param=section)
            _expect(section, dict.fromkeys((*_SECTIONS, *sorted(TABLES))), path)
            flat.update({f"{section}.{key}": value for key, value in entries.items()})
    return flat


def _assemble(values: Mapping[str, object], policy: Policy) -> Config:
    sections: dict[str, Any] = {}
    for section in _SECTIONS:
        prefix = section + "."
        given = {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
        sections[section] = get_type_hints(Config)[section](**given)
    return Config(**sections, policy=policy)


def _convert(setting: Setting, raw: object) -> object:
    """None or ValueError when `raw` does not fit."""
    if setting.is_list:
        several = raw.split(",") if isinstance(raw, str) else raw
        return _key_hashes(several) if setting.rule.unit == "key" else _texts(several)
    return convert(raw, setting.type, setting.rule)


def _texts(values: object) -> tuple[str, ...] | None:
    if not isinstance(values, (list, tuple)) or not all(isinstance(value, str) and value.strip() for value in values):
        return None
    return tuple(values)


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
