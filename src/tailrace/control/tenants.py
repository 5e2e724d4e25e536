"""Who the tenants are: from a key to a principal, from a principal to what its tenant may do now.

A tenant comes from a key and from nothing else. Without any configuration there is one, `default`, without limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tailrace.config import Config
from tailrace.control.classes import Band
from tailrace.control.keys import KeyRing, Principal
from tailrace.errors import Unauthorized
from tailrace.policy import DEFAULT_TENANT, PRIORITIES, SCOPES, Policy, Quota, TenantPolicy

ANONYMOUS = Principal(DEFAULT_TENANT, "", frozenset(("inference",)))
_UNLIMITED = Quota()
_CEILINGS = {name: Band(place) for place, name in enumerate(PRIORITIES)}


class Tenants:
    """`plain` and `admin` are SHA-256 digests of keys that belong to the tenant `default`."""

    def __init__(self, policy: Policy | None = None, plain: Sequence[str] = (), admin: Sequence[str] = ()) -> None:
        self.policy = policy = policy or Policy()
        self._tenants = {tenant.name: tenant for tenant in policy.tenants}
        self._tenants.setdefault(DEFAULT_TENANT, TenantPolicy(DEFAULT_TENANT))
        self._weight = self._weights()
        self._key_limits = {(t.name, key.name): key.limits for t in policy.tenants for key in t.keys}
        self._ring = KeyRing([*_configured(policy), *_plain(plain, ("inference",)), *_plain(admin, SCOPES)])

    @classmethod
    def of(cls, config: Config) -> Tenants:
        return cls(config.policy, config.api.api_keys, config.api.admin_keys)

    def __iter__(self) -> Iterator[TenantPolicy]:
        return iter(self._tenants.values())

    def __getitem__(self, name: str) -> TenantPolicy:
        return self._tenants[name]

    @property
    def open(self) -> bool:
        """No keys at all: everyone is the default tenant."""
        return not len(self._ring)

    @property
    def several(self) -> bool:
        """More than one that somebody can be."""
        return len(self._tenants) > 1

    def identify(self, key: str, wall: float) -> Principal:
        """Raises Unauthorized."""
        if self.open:
            return ANONYMOUS
        if not key:
            raise Unauthorized("An API key is needed: send Authorization: Bearer KEY", code="missing_api_key")
        principal = self._ring.find(key)
        if principal is None:
            raise Unauthorized("The API key is not one that this server accepts")
        if principal.expires and wall >= principal.expires:
            raise Unauthorized("The API key has expired", code="expired_api_key")
        return principal

    def key_limits(self, principal: Principal) -> Quota:
        """What the key may beside its tenant's own limits."""
        return self._key_limits.get((principal.tenant, principal.key), _UNLIMITED)

    def ceiling(self, name: str) -> Band:
        return _CEILINGS[self._tenants[name].priority]

    def salt(self, name: str) -> bytes:
        """Keeps the prefix caches of tenants apart, so that nobody learns from timing what others ask."""
        tenant = self._tenants[name]
        return b"" if tenant.shared_cache or not self.several else name.encode()

    def waiting_share(self, name: str) -> float:
        """The part of all waiting places that this tenant has for itself."""
        return self._tenants[name].weight / self._weight

    def change(self, name: str, **fields: object) -> TenantPolicy:
        """Other limits or another weight from now on; KeyError for a tenant that is not there."""
        self._tenants[name] = replace(self._tenants[name], **fields)  # type: ignore[arg-type]
        self._weight = self._weights()
        return self._tenants[name]

    def _weights(self) -> float:
        return sum(tenant.weight for tenant in self._tenants.values())


def _configured(policy: Policy) -> Iterator[tuple[str, str, Principal]]:
    for tenant in policy.tenants:
        for key in tenant.keys:
            yield key.salt, key.digest, Principal(tenant.name, key.name, frozenset(key.scopes), key.expires)


def _plain(digests: Sequence[str], scopes: Sequence[str]) -> Iterator[tuple[str, str, Principal]]:
    for each in digests:
        yield "", each, Principal(DEFAULT_TENANT, f"key-{each[:8]}", frozenset(scopes))
