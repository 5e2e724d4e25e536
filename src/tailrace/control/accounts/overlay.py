"""What an operator has changed, laid over the settings file's tenants. Pure: policies in, policies out.

An operator's word wins, field by field and key by key: what it leaves out is as the file has it, also when the file
changes. A tenant or a key that was taken away stays away, though the file still names it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tailrace.database.account import AddedKey, Overlay, TenantChange
from tailrace.errors import ConfigError
from tailrace.policy import DEFAULT_TENANT, KeyPolicy, Policy, Quota, TenantPolicy, read

log = logging.getLogger(__name__)

_ORIGIN = "admin API"


def laid_over(policy: Policy, overlay: Overlay) -> Policy:
    """What an earlier version has kept and this one cannot read is logged, and left out."""
    tenants = {tenant.name: tenant for tenant in policy.tenants}
    for change in overlay.tenants:
        if change.deleted:
            tenants.pop(change.name, None)
            continue
        base = tenants.get(change.name) or TenantPolicy(change.name)
        try:
            tenants[change.name] = changed(base, change.fields)
        except ConfigError as error:
            log.error("what was changed of the tenant %s does not hold: %s", change.name, error)
            tenants.setdefault(change.name, base)
    if any(key.tenant == DEFAULT_TENANT for key in overlay.keys):
        tenants.setdefault(DEFAULT_TENANT, TenantPolicy(DEFAULT_TENANT))
    with_keys = [replace(tenant, keys=keys_of(tenant, overlay.keys)) for tenant in tenants.values()]
    return replace(policy, tenants=tuple(with_keys))


def changed(tenant: TenantPolicy, fields: Mapping[str, Any]) -> TenantPolicy:
    """Limits that are not named stay as well. Raises ConfigError."""
    plain = {name: value for name, value in fields.items() if name != "limits"}
    limits = read(Quota, fields.get("limits", {}), "limits", _ORIGIN, tenant.limits)
    return replace(read(TenantPolicy, plain, "", _ORIGIN, tenant), limits=limits)


def keys_of(tenant: TenantPolicy, added: Iterable[AddedKey]) -> tuple[KeyPolicy, ...]:
    """The file's, but for those that an operator has a word on, and the operator's."""
    mine = [key for key in added if key.tenant == tenant.name]
    words = {key.name for key in mine}
    kept = [key for key in tenant.keys if key.name not in words]
    return (*kept, *(as_policy(key) for key in mine if not key.revoked))


def as_policy(key: AddedKey) -> KeyPolicy:
    limits = read(Quota, key.limits, "limits", _ORIGIN)
    return KeyPolicy(key.name, key.hash, key.scopes, key.expires, limits)


def with_tenant(overlay: Overlay, change: TenantChange) -> Overlay:
    """In the place of what was said of this tenant before."""
    others = [each for each in overlay.tenants if each.name != change.name]
    return replace(overlay, tenants=(*others, change))


def with_keys(overlay: Overlay, *keys: AddedKey) -> Overlay:
    """In the place of those with the same ids."""
    ids = {key.id for key in keys}
    return replace(overlay, keys=(*(each for each in overlay.keys if each.id not in ids), *keys))
