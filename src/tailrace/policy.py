"""Who may ask for what: the tables of the settings file about tenants, keys, limits, prices, classes and rules.

Data only, checked when it is read: unknown names, wrong types and contradictions are ConfigErrors that name the place.
What the numbers mean for a request is decided in `control`.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields, replace
from datetime import UTC, date, datetime, time
from enum import StrEnum
from typing import Any, TypeVar, get_args, get_type_hints

from tailrace.errors import ConfigError
from tailrace.frozen import frozen
from tailrace.knobs import Mistakes, Rule, convert, knob

SCOPES = ("inference", "admin")
PRIORITIES = ("high", "normal", "background")  # names of the bands, first served first
DEFAULT_TENANT = DEFAULT_PRICE = "default"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PLAIN_KEY = re.compile(r"key-[0-9a-f]{8}")  # what those of --api-key are called
_CURRENCY = re.compile(r"[^\W\d_]{1,12}|[€$£¥]")
_HASH = re.compile(r"sha256:(?:([0-9a-zA-Z_-]{1,64}):)?([0-9a-f]{64})")

_KEY_BYTES = 24  # of a secret, at least

_MOST = 10**12  # of a limit: more than any machine could do
_SECONDS = 10**9  # the same: thirty years

T = TypeVar("T")


class RequestClass(StrEnum):
    """How a request is scheduled."""

    INTERACTIVE = "interactive"  # someone waits for the first token
    LONG = "long"  # much to compute, or much to write
    AGENT = "agent"  # a program works through tool calls
    EMBEDDING = "embedding"  # texts become vectors; nothing is written
    BACKGROUND = "background"  # nobody waits


@frozen
class Quota:
    """Limits of a tenant or of one key; 0: none. Rates are buckets that hold a minute's worth and fill evenly."""

    requests_per_minute: int = knob(0, "HTTP requests", low=0, high=_MOST)
    prompt_tokens_per_minute: int = knob(0, "prompt tokens, cached ones too", low=0, high=_MOST)
    output_tokens_per_minute: int = knob(0, "generated tokens", low=0, high=_MOST)
    device_seconds_per_minute: float = knob(0.0, "standard device-seconds", low=0, high=_SECONDS)
    concurrency: int = knob(0, "sequences at once: n = 4 counts four", low=0, high=_MOST)
    budget_device_seconds: float = knob(0.0, "standard device-seconds altogether; never refills", low=0, high=_SECONDS)
    money_per_day: float = knob(0.0, "money a day of UTC, by the prices", low=0, high=_SECONDS)
    money_per_month: float = knob(0.0, "money a calendar month of UTC, by the prices", low=0, high=_SECONDS)
    max_context: int = knob(0, "tokens of prompt and answer together", low=0, high=_MOST)
    max_output: int = knob(0, "tokens of one answer; more is lowered to it", low=0, high=_MOST)


@frozen
class KeyPolicy:
    """An API key, known by its hash only. Its limits hold beside the tenant's."""

    name: str = knob("", "what logs and records call it")
    hash: str = knob("", "sha256:SALT:HEX as `tailrace keys new` prints it, or sha256:HEX")
    scopes: tuple[str, ...] = knob(("inference",), "what it opens", choices=SCOPES)
    expires: float = knob(0.0, "a date, or a date and time; the key is refused from then on")
    limits: Quota = field(default_factory=Quota)

    @property
    def salt(self) -> str:
        match = _HASH.fullmatch(self.hash)
        return (match[1] or "") if match else ""

    @property
    def digest(self) -> str:
        """SHA-256 over salt and key, hex."""
        return self.hash.rpartition(":")[2]


@frozen
class TenantPolicy:
    name: str = knob("", "unique among tenants")
    weight: float = knob(1.0, "share of the machine against other busy tenants", low=0.001, high=1_000_000)
    priority: str = knob("normal", "the highest band its requests may use", choices=PRIORITIES)
    classes: tuple[str, ...] = knob((), "classes it may use; none: all", choices=tuple(RequestClass))
    models: tuple[str, ...] = knob((), "models it may use; none: all")
    mode: str = knob("strict", "shadow: limits are decided and recorded, never enforced", choices=("strict", "shadow"))
    shared_cache: bool = knob(False, "prompts may hit the prefix cache of other tenants that say the same")
    max_waiting_requests: int = knob(0, "requests of it that may wait; 0: half of all, or its weight's part", low=0)
    max_waiting_tokens: int = knob(0, "prompt tokens of it that may wait; 0: half of all, or its weight's part", low=0)
    overflow: str = knob("refuse", "what cannot be served in time; job: done later as one", choices=("refuse", "job"))
    webhook_secret: str = knob("", "whsec_BASE64 of at least 24 bytes, with which its webhooks are signed", unit="key")
    limits: Quota = field(default_factory=Quota)
    keys: tuple[KeyPolicy, ...] = ()


@frozen
class ClassPolicy:
    """How long requests of a class may take to start, and how many of them may wait. 0: no bound of its own."""

    ttft: float = knob(0.0, "first token due after; told at once when it cannot be met", unit="seconds", low=0)
    queue_deadline: float = knob(0.0, "longest time in the queue", unit="seconds", low=0)
    max_waiting_requests: int = knob(0, "requests of the class that may wait", low=0)
    max_waiting_tokens: int = knob(0, "prompt tokens of the class that may wait", low=0)
    as_job: bool = knob(False, "what cannot start in time is offered as a job instead of a refusal")


@frozen
class ClassRule:
    """Puts requests into a class when all that it states holds. The first rule that matches decides."""

    request_class: RequestClass = field(metadata={"key": "class"})
    tenant: str = knob("", "name of a tenant")
    key: str = knob("", "name of a key")
    model: str = knob("", "name of a model")
    route: str = knob("", "of the API", choices=("", "chat", "completions", "embeddings", "rerank", "score"))
    origin: str = knob("", "http or job", choices=("", "http", "job"))
    service_tier: str = knob("", "the request's own service_tier")
    tools: bool | None = knob(None, "whether tools are on offer; absent: either")
    attachments: bool | None = knob(None, "whether there are parts that are no text; absent: either")
    from_tokens: int = knob(0, "uncached prompt tokens, at least", low=0)


@frozen
class ClassPolicies:
    """Nobody waits for ever: a request that has not started by its class's queue deadline is told so."""

    interactive: ClassPolicy = ClassPolicy(queue_deadline=60.0)
    agent: ClassPolicy = ClassPolicy(queue_deadline=120.0)
    long: ClassPolicy = ClassPolicy(queue_deadline=300.0)
    embedding: ClassPolicy = ClassPolicy(queue_deadline=120.0)
    background: ClassPolicy = ClassPolicy(queue_deadline=3600.0, as_job=True)

    def of(self, request_class: RequestClass) -> ClassPolicy:
        policy: ClassPolicy = getattr(self, request_class)
        return policy


@frozen
class Price:
    """What requests for a model cost, in whole billionths of the currency's unit."""

    device_second: int = knob(0, "of a standard device-second", unit="price")
    prompt_million: int = knob(0, "of a million prompt tokens, without the cached ones", unit="price")
    cached_million: int = knob(0, "of a million prompt tokens that the prefix cache had", unit="price")
    output_million: int = knob(0, "of a million generated tokens", unit="price")


_FREE = Price()


@frozen
class Prices:
    """By model. What is not in the table costs as `default`, or nothing."""

    currency: str = knob("USD", "what amounts of money are called")
    models: Mapping[str, Price] = field(default_factory=dict)

    def of(self, *names: str) -> Price:
        """Of the first of these models that has a price."""
        return next((self.models[name] for name in (*names, DEFAULT_PRICE) if name in self.models), _FREE)


@frozen
class Policy:
    tenants: tuple[TenantPolicy, ...] = ()
    classes: ClassPolicies = field(default_factory=ClassPolicies)
    rules: tuple[ClassRule, ...] = ()
    prices: Prices = field(default_factory=Prices)


TABLES = frozenset(("tenants", "classes", "rules", "prices"))


def read_policy(tree: Mapping[str, object], origin: str) -> Policy:
    """The tables among a settings file's sections. Raises ConfigError."""
    known = {name: table for name, table in tree.items() if name in TABLES}
    policy = read(Policy, known, "", origin)
    _check(policy, origin)
    return policy


def read(kind: type[T], table: object, where: str, origin: str, base: T | None = None) -> T:
    """A table as a dataclass. `where` is its path in the file, for messages; what it leaves out is as in `base`."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} ({origin}) must be a table", param=where)
    types = get_type_hints(kind)
    known: dict[str, Field[Any]] = {each.metadata.get("key", each.name): each for each in fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    mistakes = Mistakes()
    for name in table:
        with mistakes.noted():
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.0)[0]
                raise ConfigError(f"unknown setting {_join(where, name)} ({origin}); the nearest known one is {near}")
            each = known[name]
            values[each.name] = _value(each, types[each.name], table[name], (_join(where, name), origin))
    for name, each in known.items():
        with mistakes.noted():
            if base is None and name not in table and each.default is MISSING and each.default_factory is MISSING:
                raise ConfigError(f"{_join(where, name)} ({origin}) is missing", param=_join(where, name))
    mistakes.tell()
    if base is not None:
        changed: T = replace(base, **values)  # type: ignore[type-var]
        return changed
    return kind(**values)


def _value(item: Field[Any], kind: Any, raw: object, place: tuple[str, str]) -> object:
    where, origin = place
    rule: Rule = item.metadata.get("rule") or Rule("")
    if item.name == "expires":
        return _moment(raw, place)
    inner = get_args(kind)[0] if get_args(kind) else None
    if hasattr(kind, "__dataclass_fields__"):
        base = None if item.default is MISSING else item.default
        return _prices(raw, place) if kind is Prices else read(kind, raw, where, origin, base)
    if inner is not None and hasattr(inner, "__dataclass_fields__"):
        return _tables(inner, _items(raw, place), place)
    if kind == tuple[str, ...]:
        return tuple(str(_plain(str, each, rule, place)) for each in _items(raw, place))
    if kind is RequestClass:
        return RequestClass(str(_plain(str, raw, Rule("", choices=tuple(RequestClass)), place)))
    return _plain(bool if kind == bool | None else kind, raw, rule, place)


def _tables(kind: Any, tables: list[object], place: tuple[str, str]) -> tuple[object, ...]:
    found = []
    mistakes = Mistakes()
    for number, table in enumerate(tables):
        with mistakes.noted():
            found.append(read(kind, table, f"{place[0]}[{number}]", place[1]))
    mistakes.tell()
    return tuple(found)


def _plain(kind: object, raw: object, rule: Rule, place: tuple[str, str]) -> object:
    text_of_a_number = isinstance(raw, str) and kind is not str and not rule.unit
    try:
        value = None if text_of_a_number else convert(raw, kind, rule)
    except (ValueError, OverflowError):
        value = None
    if value is None or not rule.allows(value):
        where, origin = place
        shown = "a value" if rule.unit == "key" else repr(raw)  # a secret never reaches a log
        raise ConfigError(f"{where} = {shown} ({origin}): accepted is {rule.accepts(kind)}", param=where)
    return value


def _prices(raw: object, place: tuple[str, str]) -> Prices:
    """Every table in it is a model's."""
    where, origin = place
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{where} ({origin}) must be a table", param=where)
    tables = dict(raw)
    own = {"currency": tables.pop("currency")} if "currency" in tables else {}
    prices = read(Prices, own, where, origin)
    if not _CURRENCY.fullmatch(prices.currency):
        raise ConfigError(
            f"{where}.currency = {prices.currency!r} ({origin}): accepted is a name of at most 12 letters",
            param=f"{where}.currency",
        )
    models = {name: read(Price, table, _join(where, name), origin) for name, table in tables.items()}
    return replace(prices, models=models)


def _items(raw: object, place: tuple[str, str]) -> list[object]:
    if not isinstance(raw, list):
        raise ConfigError(f"{place[0]} ({place[1]}) must be a list", param=place[0])
    return raw


def _moment(raw: object, place: tuple[str, str]) -> float:
    """A TOML date (its first moment) or date and time as seconds since the epoch; without a zone it is UTC."""
    if isinstance(raw, str):
        try:
            raw = datetime.fromisoformat(raw)
        except ValueError:
            raw = None
    if isinstance(raw, date) and not isinstance(raw, datetime):
        raw = datetime.combine(raw, time(), UTC)
    if not isinstance(raw, datetime):
        where, origin = place
        raise ConfigError(f"{where} ({origin}): accepted is a date such as 2027-01-31, or with a time", param=where)
    moment = (raw if raw.tzinfo else raw.replace(tzinfo=UTC)).timestamp()
    return moment or -1.0  # 0 says never


def _check(policy: Policy, origin: str) -> None:
    """What holds between tables."""
    _unique([tenant.name for tenant in policy.tenants], "tenant", origin)
    hashes: list[str] = []
    for tenant in policy.tenants:
        _unique([key.name for key in tenant.keys], f"key of tenant {tenant.name}", origin)
        if tenant.webhook_secret and not _is_secret(tenant.webhook_secret):
            text = "webhook_secret must be whsec_ and the base64 of at least 24 bytes"
            raise ConfigError(f"tenant {tenant.name} ({origin}): {text}", param="webhook_secret")
        for key in tenant.keys:
            if not _HASH.fullmatch(key.hash):
                text = "hash must be sha256:SALT:HEX, as `tailrace keys new` prints it"
                raise ConfigError(f"key {key.name} of tenant {tenant.name} ({origin}): {text}", param="hash")
            hashes.append(key.hash)
        if not tenant.keys and tenant.name != DEFAULT_TENANT:
            raise ConfigError(
                f"tenant {tenant.name} ({origin}) has no keys, so nobody could ever be it; only {DEFAULT_TENANT} may "
                "have none: callers with one of --api-key are it, and everyone while there are no keys",
                param="tenants",
            )
    if len(set(hashes)) < len(hashes):
        raise ConfigError(f"two keys ({origin}) have the same hash: a key belongs to one tenant", param="hash")
    check_budgets(policy, origin)
    names = {tenant.name for tenant in policy.tenants} | {DEFAULT_TENANT}
    keys = {key.name for tenant in policy.tenants for key in tenant.keys}
    for rule in policy.rules:
        if rule.key and rule.key not in keys and not _PLAIN_KEY.fullmatch(rule.key):
            raise ConfigError(f"a rule ({origin}) names the key {rule.key}, which is not there", param="rules")
        if rule.tenant and rule.tenant not in names:
            raise ConfigError(f"a rule ({origin}) names the tenant {rule.tenant}, which is not there", param="rules")


def check_budgets(policy: Policy, origin: str) -> None:
    """Raises ConfigError for a budget of money where nothing has a price."""
    limits = {f"tenant {tenant.name}": tenant.limits for tenant in policy.tenants}
    limits |= {f"key {key.name} of tenant {t.name}": key.limits for t in policy.tenants for key in t.keys}
    for whose, quota in limits.items():
        if (quota.money_per_day or quota.money_per_month) and not policy.prices.models:
            raise ConfigError(
                f"{whose} ({origin}) has a budget of money and nothing has a price: add a table [prices.default]",
                param="prices",
            )


def _is_secret(text: str) -> bool:
    try:
        return text.startswith("whsec_") and len(b64decode(text.removeprefix("whsec_"), validate=True)) >= _KEY_BYTES
    except ValueError:
        return False


def _unique(names: list[str], what: str, origin: str) -> None:
    for name in names:
        check_name(name, f"{what} {name!r} ({origin})")
        if names.count(name) > 1:
            raise ConfigError(f"{what} {name} ({origin}) is there twice", param="name")


def check_name(name: str, place: str) -> None:
    """Raises ConfigError that begins with `place`."""
    if not _NAME.fullmatch(name):
        text = "a letter or digit, then letters, digits, dot, dash and underscore, at most 64"
        raise ConfigError(f"{place}: a name is made of {text}", param="name")


def check_expires(text: str, place: str) -> None:
    """As the settings file must have it: a TOML date, or date and time. Raises ConfigError."""
    try:
        raw: object = tomllib.loads(f"expires = {text}")["expires"]
    except ValueError:
        raw = None
    _moment(raw if isinstance(raw, date) else None, (place, text))


def _join(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)
