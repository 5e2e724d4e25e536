"""Who the tenants are: from a key to a principal, from a principal to what its tenant may do now.

A tenant comes from a key and from nothing else. Without any configuration there is one, `default`, without limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tailrace.config import Config
from tailrace.control.classes import Band
from tailrace.control.keys import KeyRing, Principal
from tailrace.errors import Unauthorized, Unavailable
from tailrace.policy import DEFAULT_TENANT, PRIORITIES, SCOPES, Policy, Quota, TenantPolicy

ANONYMOUS = Principal(DEFAULT_TENANT, "", frozenset(("inference",)))
_UNLIMITED = Quota()
_CEILINGS = {name: Band(place) for place, name in enumerate(PRIORITIES)}


class Tenants:
    """`plain` and `admin` are SHA-256 digests of keys that belong to the tenant `default`."""

    def __init__(self, policy: Policy | None = None, plain: Sequence[str] = (), admin: Sequence[str] = ()) -> None:
        self._locked = False
        self.complete = True  # False: there may be keys that are not known yet
        self._gone: dict[str, TenantPolicy] = {}
        self._tenants: dict[str, TenantPolicy] = {}
        self._set(policy or Policy(), plain, admin)

    def configure(self, config: Config) -> None:
        """Others from now on. Keys that are not there any more are refused; what tenants that are not there any more
        still run is accounted to them."""
        self._gone.update(self._tenants)
        self._set(config.policy, config.api.api_keys, config.api.admin_keys)

    def _set(self, policy: Policy, plain: Sequence[str], admin: Sequence[str]) -> None:
        self.policy = policy
        self._tenants = {tenant.name: tenant for tenant in policy.tenants}
        self._tenants.setdefault(DEFAULT_TENANT, TenantPolicy(DEFAULT_TENANT))
        self._weight = self._weights()
        self._key_limits = {(t.name, key.name): key.limits for t in policy.tenants for key in t.keys}
        self._ring = KeyRing([*_configured(policy), *_plain(plain, ("inference",)), *_plain(admin, SCOPES)])
        self._locked |= len(self._ring) > 0

    def lock(self) -> None:
        """There have been keys, though there may be none now."""
        self._locked = True

    @classmethod
    def of(cls, config: Config) -> Tenants:
        return cls(config.policy, config.api.api_keys, config.api.admin_keys)

    def __iter__(self) -> Iterator[TenantPolicy]:
        return iter(self._tenants.values())

    def __getitem__(self, name: str) -> TenantPolicy:
        """One that is gone too."""
        return self._tenants.get(name) or self._gone[name]

    def __contains__(self, name: object) -> bool:
        return name in self._tenants

    @property
    def open(self) -> bool:
        """There have never been any keys: everyone is the default tenant. Who takes the last one away opens nothing."""
        return not self._locked

    @property
    def several(self) -> bool:
        """More than one that somebody can be."""
        return len(self._tenants) > 1

    def identify(self, key: str, wall: float) -> Principal:
        """Raises Unauthorized, and Unavailable where that hangs on keys that are not read yet."""
        if self.open and self.complete:
            return ANONYMOUS
        if not (key or self.open):
            raise Unauthorized("An API key is needed: send Authorization: Bearer KEY", code="missing_api_key")
        principal = self._ring.find(key) if key else None
        if principal is None and not self.complete:
            raise Unavailable("The keys are not read yet", code="not_ready", retry_after=1.0)
        if principal is None:
            raise Unauthorized("The API key is not one that this server accepts")
        if principal.expires and wall >= principal.expires:
            raise Unauthorized("The API key has expired", code="expired_api_key")
        return principal

    def key_limits(self, tenant: str, key: str) -> Quota:
        """What the key of that name may beside its tenant's own limits."""
        return self._key_limits.get((tenant, key), _UNLIMITED)

    def ceiling(self, name: str) -> Band:
        return _CEILINGS[self[name].priority]

    def salt(self, name: str) -> bytes:
        """Keeps the prefix caches of tenants apart, so that nobody learns from timing what others ask."""
        tenant = self[name]
        return b"" if tenant.shared_cache or not self.several else name.encode()

    def waiting_share(self, name: str) -> float:
        """The part of all waiting places that this tenant has for itself."""
        return self[name].weight / self._weight

    def _weights(self) -> float:
        return sum(tenant.weight for tenant in self._tenants.values())


def _configured(policy: Policy) -> Iterator[tuple[str, str, Principal]]:
    for tenant in policy.tenants:
        for key in tenant.keys:
            yield key.salt, key.digest, Principal(tenant.name, key.name, frozenset(key.scopes), key.expires)


def _plain(digests: Sequence[str], scopes: Sequence[str]) -> Iterator[tuple[str, str, Principal]]:
    for each in digests:
        yield "", each, Principal(DEFAULT_TENANT, f"key-{each[:8]}", frozenset(scopes))
