"""Tables of tenants, keys, classes and rules: what is read, and how a wrong one is refused."""

from __future__ import annotations

import hashlib
import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from tailrace.config import Config, ControlConfig, DataConfig, load, warnings
from tailrace.control.limits.base import caps
from tailrace.errors import ConfigError
from tailrace.policy import ClassPolicy, ClassRule, Policy, Price, Prices, Quota, RequestClass, TenantPolicy

HASH = "sha256:" + hashlib.sha256(b"sk").hexdigest()
SALTED = "sha256:ab12:" + hashlib.sha256(b"ab12sk").hexdigest()


def policy(tmp_path: Path, text: str) -> Policy:
    file = tmp_path / "t.toml"
    file.write_text(text, encoding="utf-8")
    return load(str(file), {}).config.policy


def test_everything_that_can_be_said(tmp_path: Path) -> None:
    read = policy(
        tmp_path,
        f"""
        [control]
        max_waiting_requests = 9
        [[tenants]]
        name = "acme"
        weight = 3
        priority = "high"
        classes = ["interactive", "long"]
        models = ["m"]
        mode = "shadow"
        max_waiting_requests = 5
        limits = {{ requests_per_minute = 60, device_seconds_per_minute = 1.5, concurrency = 4, max_output = 100 }}
        [[tenants.keys]]
        name = "ci"
        hash = "{SALTED}"
        scopes = ["inference", "admin"]
        expires = 2027-01-31
        limits = {{ concurrency = 1 }}
        [[tenants.keys]]
        name = "web"
        hash = "{HASH}"
        expires = 2027-01-31T10:00:00+02:00
        [classes.interactive]
        ttft = "2s"
        [[rules]]
        class = "background"
        tenant = "acme"
        tools = true
        """,
    )
    (tenant,) = read.tenants
    assert (tenant.name, tenant.weight, tenant.priority, tenant.mode) == ("acme", 3.0, "high", "shadow")
    assert (tenant.classes, tenant.models, tenant.max_waiting_requests) == (("interactive", "long"), ("m",), 5)
    assert tenant.limits == Quota(60, device_seconds_per_minute=1.5, concurrency=4, max_output=100)
    ci, web = tenant.keys
    assert (ci.salt, ci.digest) == ("ab12", hashlib.sha256(b"ab12sk").hexdigest())
    assert (web.salt, web.digest) == ("", hashlib.sha256(b"sk").hexdigest())
    assert (ci.scopes, web.scopes) == (("inference", "admin"), ("inference",))
    assert (ci.expires, web.expires) == (1_801_353_600.0, 1_801_353_600.0 + 8 * 3600)
    assert ci.limits == Quota(concurrency=1)
    assert read.classes.interactive == ClassPolicy(ttft=2.0, queue_deadline=60.0)  # the rest is as without the table
    assert read.classes.of(RequestClass.LONG).queue_deadline == 300.0
    assert read.rules == (ClassRule(RequestClass.BACKGROUND, tenant="acme", tools=True),)


def test_no_tables_are_no_policy(tmp_path: Path) -> None:
    assert policy(tmp_path, "[api]\nport = 1\n") == Config().policy == Policy()


ACME = f'[[tenants]]\nname = "acme"\nkeys = [{{ name = "k", hash = "{HASH}" }}]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ACME + "wieght = 2", r"unknown setting tenants\[0\]\.wieght .* weight"),
        (ACME + "weight = 0", r"tenants\[0\]\.weight = 0 .*accepted is a number from 0\.001"),
        (ACME + "weight = true", r"tenants\[0\]\.weight = True"),
        (ACME + 'priority = "top"', r"high \| normal \| background"),
        (ACME + 'classes = ["short"]', r"tenants\[0\]\.classes = 'short' .*interactive"),
        (ACME + 'classes = "long"', "must be a list"),
        (ACME + "limits = 3", "must be a table"),
        (ACME + "limits = { rpm = 3 }", r"unknown setting tenants\[0\]\.limits\.rpm"),
        (ACME + "limits = { concurrency = -1 }", r"a whole number from 0 to 1e\+12"),
        (ACME + ACME, "tenant acme .* is there twice"),
        (ACME + ACME.replace("acme", "other"), "two keys .* have the same hash"),
        (ACME.replace(HASH, "sk-plain"), "key k of tenant acme .*tailrace keys new"),
        (ACME.replace('"k"', '"a b"'), "a name is made of"),
        (ACME.replace(f'hash = "{HASH}"', f'hash = "{HASH}", expires = "soon"'), "accepted is a date"),
        ('[[tenants]]\nname = "acme"\n', "has no keys"),
        ("[tenants]\nx = 1\n", "tenants .* must be a list"),
        ('[[rules]]\ntenant = "default"\n', r"rules\[0\]\.class .* is missing"),
        ('[[rules]]\nclass = "long"\ntenant = "who"\n', "names the tenant who"),
        ("[classes.fast]\n", r"unknown setting classes\.fast"),
        ("[prices.m]\ntoken = 1\n", r"unknown setting prices\.m\.token .* nearest known one"),
        ("[prices]\ncurency = 'EUR'\n", r"prices\.curency .* must be a table"),
        ("[prices]\ncurrency = 3\n", r"prices\.currency = 3 .*accepted is text"),
        ("[prices]\ncurrency = '<b>'\n", r"prices\.currency = '<b>' .*at most 12 letters"),
        ("[prices.default]\ndevice_second = -1\n", r"prices\.default\.device_second = -1 .*an amount of money"),
        ("[prices.default]\noutput_million = 1000001\n", r"at most 1000000"),
        ("[prices.default]\noutput_million = 0.0000000001\n", r"at most 9 decimals"),
        ("[prices.default]\noutput_million = nan\n", r"output_million = nan"),
        ("[prices.default]\noutput_million = '1e999999999'\n", r"output_million = '1e999999999'"),
        ("[prices.default]\noutput_million = true\n", r"output_million = True"),
        (ACME + "limits = { money_per_day = 1 }", r"tenant acme .* has a budget of money and nothing has a price"),
        (ACME.replace("hash =", "limits = { money_per_month = 1 }, hash ="), r"key k of tenant acme .*prices\.default"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        policy(tmp_path, text)


def test_prices_are_exactly_what_is_written(tmp_path: Path) -> None:
    read = policy(
        tmp_path,
        """
        [prices]
        currency = "EUR"
        [prices.default]
        device_second = 0.000_1
        [prices."m:1b"]
        prompt_million = 0.3
        cached_million = "0.030000001"
        output_million = 2
        """,
    ).prices
    assert read.currency == "EUR"
    assert read.of("m:1b") == Price(0, 300_000_000, 30_000_001, 2_000_000_000)
    assert read.of("tuned", "m:1b") == read.of("m:1b")  # an adapter costs what its model does
    assert read.of("other") == Price(device_second=100_000)
    assert Prices().of("other") == Price()


def test_a_hash_never_reaches_a_message_when_it_is_a_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        policy(tmp_path, ACME.replace(HASH, "sk-very-secret"))
    assert "secret" not in caught.value.message


def test_the_example_of_the_docs_is_read() -> None:
    example = Path(__file__).resolve().parents[1] / "docs" / "examples" / "tenants.toml"
    policy = load(str(example), {}).config.policy
    assert [tenant.name for tenant in policy.tenants] == ["web", "reports", "trial"]
    assert policy.classes.interactive == ClassPolicy(ttft=2.0, queue_deadline=20.0)
    assert policy.rules == (ClassRule(RequestClass.BACKGROUND, tenant="reports", from_tokens=4096),)


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("requests_per_minute = " + "9" * 30, "a whole number from 0 to 1e+12"),
        ("concurrency = 1e15", "a whole number from 0 to 1e+12"),
        ("device_seconds_per_minute = 1e300", "a number from 0 to 1e+09"),
        ('budget_device_seconds = "' + "9" * 400 + '"', "a number from 0 to 1e+09"),
    ],
)
def test_limits_beyond_every_machine_are_refused(tmp_path: Path, limit: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        policy(tmp_path, f'[[tenants]]\nname = "default"\n[tenants.limits]\n{limit}')


def test_a_limit_is_never_rounded_to_none(tmp_path: Path) -> None:
    (tenant,) = policy(
        tmp_path,
        '[[tenants]]\nname = "default"\nlimits = {device_seconds_per_minute = 1e-7, budget_device_seconds = 2e-5}',
    ).tenants
    assert (caps(tenant.limits).device_us, caps(tenant.limits).budget_us) == (1, 20)
    assert not any(caps(Quota()))


def test_the_first_second_of_1970_is_not_never(tmp_path: Path) -> None:
    text = f'[[tenants]]\nname = "a"\nkeys = [{{name = "k", hash = "{HASH}", expires = 1970-01-01}}]'
    assert policy(tmp_path, text).tenants[0].keys[0].expires < 0


@pytest.mark.parametrize(("key", "there"), [("ci", True), ("key-0a1b2c3d", True), ("cd", False)])
def test_a_rule_names_a_key_that_is_there(tmp_path: Path, key: str, there: bool) -> None:
    text = (
        f'[[tenants]]\nname = "a"\nkeys = [{{name = "ci", hash = "{HASH}"}}]\n[[rules]]\nclass = "long"\nkey = "{key}"'
    )
    with nullcontext() if there else pytest.raises(ConfigError, match="names the key cd, which is not there"):
        assert policy(tmp_path, text).rules[0].key == key


def test_budgets_that_a_restart_forgets_are_warned_about() -> None:
    day, month = Quota(money_per_day=1), Quota(money_per_month=1)
    week = DataConfig(ledger_retention=7 * 86_400.0)

    def said(limits: Quota, data: DataConfig, redis: str = "") -> list[str]:
        policy, control = Policy((TenantPolicy("default", limits=limits),)), ControlConfig(limits_url=redis)
        return warnings(Config(policy=policy, data=data, control=control))

    assert said(month, DataConfig()) == said(day, week) == said(Quota(), DataConfig(database="none")) == []
    assert "keep 31 days" in said(month, week)[0]
    assert "--database none" in said(day, DataConfig(database="none"))[0]
    assert said(month, week, "redis://r") == []
