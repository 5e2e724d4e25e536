"""From a key to a tenant, and what the tenant may do."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from tailrace.config import Config
from tailrace.control import keys
from tailrace.control.classes import Band
from tailrace.control.keys import KeyRing, Principal, digest, new_key
from tailrace.control.tenants import ANONYMOUS, Tenants
from tailrace.errors import Unauthorized, Unavailable
from tailrace.policy import KeyPolicy, Policy, Quota, TenantPolicy

NOW = 1_700_000_000.0
PLAIN = hashlib.sha256(b"plain").hexdigest()


def key(name: str, text: str, salt: str = "", **fields: object) -> KeyPolicy:
    middle = f"{salt}:" if salt else ""
    return KeyPolicy(name, f"sha256:{middle}{digest(text, salt)}", **fields)  # type: ignore[arg-type]


ACME = TenantPolicy(
    "acme", weight=3.0, priority="high",
    keys=(key("ci", "k1", "aa", limits=Quota(concurrency=2)), key("old", "k2", "bb", expires=NOW)),
)  # fmt: skip
OTHER = TenantPolicy("other", keys=(key("admin", "k3", "aa", scopes=("inference", "admin")),))
TENANTS = Tenants(Policy((ACME, OTHER)), plain=[PLAIN], admin=[digest("boss")])


@pytest.mark.parametrize(
    ("given", "tenant", "name", "scopes"),
    [
        ("k1", "acme", "ci", {"inference"}),
        ("k3", "other", "admin", {"inference", "admin"}),
        ("plain", "default", f"key-{PLAIN[:8]}", {"inference"}),
        ("boss", "default", f"key-{digest('boss')[:8]}", {"inference", "admin"}),
    ],
)
def test_a_key_says_who_calls(given: str, tenant: str, name: str, scopes: set[str]) -> None:
    assert TENANTS.identify(given, NOW - 1) == Principal(tenant, name, frozenset(scopes), 0.0)


@pytest.mark.parametrize(
    ("given", "code"),
    [("", "missing_api_key"), ("k4", "invalid_api_key"), ("aak1", "invalid_api_key"), ("k2", "expired_api_key")],
)
def test_a_wrong_key_is_refused(given: str, code: str) -> None:
    with pytest.raises(Unauthorized) as caught:
        TENANTS.identify(given, NOW)
    assert caught.value.code == code


def test_an_expiring_key_works_until_then() -> None:
    assert TENANTS.identify("k2", NOW - 0.001).key == "old"


def test_without_keys_everyone_is_the_default_tenant() -> None:
    tenants = Tenants()
    assert tenants.open
    assert tenants.identify("", NOW) is tenants.identify("anything", NOW) is ANONYMOUS
    assert [tenant.name for tenant in tenants] == ["default"]
    assert tenants.salt("default") == b""


def test_several_tenants_do_not_share_a_prefix_cache() -> None:
    assert (TENANTS.salt("acme"), TENANTS.salt("other"), TENANTS.salt("default")) == (b"acme", b"other", b"default")
    shared = Tenants(Policy((ACME, TenantPolicy("open", shared_cache=True, keys=(key("k", "x"),)))))
    assert shared.salt("open") == b""


def test_bands_shares_and_limits() -> None:
    assert (TENANTS.ceiling("acme"), TENANTS.ceiling("other")) == (Band.HIGH, Band.NORMAL)
    assert TENANTS.waiting_share("acme") == 3 / 5  # of acme, other and default
    assert TENANTS.key_limits("acme", "ci") == Quota(concurrency=2)
    assert TENANTS.key_limits("default", "") == Quota()


def test_what_a_tenant_may_can_change_while_it_calls() -> None:
    tenants = Tenants(Policy((ACME,)))
    tenants.configure(Config(policy=Policy((replace(ACME, weight=1.0, limits=Quota(concurrency=1)),))))
    assert (tenants["acme"].weight, tenants["acme"].limits.concurrency) == (1.0, 1)
    tenants.configure(Config())
    assert "acme" not in tenants
    assert tenants["acme"].weight == 1.0
    with pytest.raises(KeyError):
        tenants["nobody"]


def test_keys_that_nobody_knows_yet_are_not_refused_for_good() -> None:
    tenants = Tenants()
    tenants.complete = False
    for key in ("k1", ""):  # who brings none may be told to bring one, or be anyone: that is not known yet either
        with pytest.raises(Unavailable) as caught:
            tenants.identify(key, 0)
        assert (caught.value.code, caught.value.retry_after) == ("not_ready", 1.0)
    tenants.complete = True
    assert tenants.identify("", 0) == ANONYMOUS
    tenants.lock()
    tenants.complete = False
    with pytest.raises(Unauthorized):
        tenants.identify("", 0)


def test_every_hash_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    real = keys.hmac.compare_digest

    def compare(mine: str, theirs: str) -> bool:
        compared.append(theirs)
        return real(mine, theirs)

    monkeypatch.setattr(keys.hmac, "compare_digest", compare)
    ring = KeyRing([("", digest(f"k{i}"), Principal(f"t{i}", "k", frozenset())) for i in range(5)])
    for given in ("k0", "k4", "none"):
        compared.clear()
        ring.find(given)
        assert compared == [digest(f"k{i}") for i in range(5)]


def test_new_keys() -> None:
    first, second = new_key(), new_key()
    assert first.key != second.key
    assert first.key not in repr(first)
    policy = Policy((TenantPolicy("t", keys=(KeyPolicy("k", first.hash),)),))
    assert Tenants(policy).identify(first.key, NOW).tenant == "t"
    assert first.key not in first.hash
