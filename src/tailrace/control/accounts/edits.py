"""The changes that an operator can make, each from what is there to what is then there. Pure; refusals are typed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from tailrace.control.accounts.overlay import changed, laid_over, with_keys, with_tenant
from tailrace.database.account import AddedKey, Overlay, TenantChange
from tailrace.errors import ConfigError, Conflict, InvalidRequest, NotFound
from tailrace.frozen import frozen
from tailrace.policy import DEFAULT_TENANT, SCOPES, KeyPolicy, Policy, Quota, TenantPolicy, check_name, read

CHANGEABLE = (
    "weight", "priority", "classes", "models", "mode", "shared_cache", "max_waiting_requests", "max_waiting_tokens",
    "limits",
)  # fmt: skip
KEY_FIELDS = ("name", "scopes", "expires", "limits")
MOST_OVERLAP = 30 * 86400.0  # seconds that a key may go on after its successor was made
_MOST_KEYS = 1000  # of a tenant: each is compared with every request's


@frozen
class Basis:
    """What an edit starts from: the file's policy, and what was laid over it."""

    file: Policy
    overlay: Overlay

    @property
    def policy(self) -> Policy:
        return laid_over(self.file, self.overlay)

    def tenant(self, name: str) -> TenantPolicy:
        """Raises NotFound."""
        known = {tenant.name: tenant for tenant in self.policy.tenants}
        known.setdefault(DEFAULT_TENANT, TenantPolicy(DEFAULT_TENANT))
        if name not in known:
            raise NotFound(f"There is no tenant {name}; known: {', '.join(known)}", code="tenant_not_found")
        return known[name]

    def key(self, tenant: str, name: str) -> list[KeyPolicy]:
        """Those of that name that are let in. Raises NotFound."""
        found = [key for key in self.tenant(tenant).keys if key.name == name]
        if not found:
            raise NotFound(f"The tenant {tenant} has no key {name}", code="key_not_found")
        return found


def create_tenant(basis: Basis, fields: Mapping[str, Any]) -> Overlay:
    """Raises Conflict, InvalidRequest."""
    name = fields.get("name")
    _named(name, "name")
    assert isinstance(name, str)
    if name == DEFAULT_TENANT or any(tenant.name == name for tenant in basis.policy.tenants):
        raise Conflict(f"There is a tenant {name} already: change it instead", param="name", code="tenant_exists")
    rest = {field: value for field, value in fields.items() if field != "name"}
    return _with_change(basis.overlay, TenantPolicy(name), rest, {})


def change_tenant(basis: Basis, name: str, fields: Mapping[str, Any]) -> Overlay:
    """What is not named stays. Raises NotFound, InvalidRequest."""
    tenant = basis.tenant(name)
    if not fields:
        raise InvalidRequest(f"nothing is to be changed; what can: {', '.join(CHANGEABLE)}")
    before = next((each.fields for each in basis.overlay.tenants if each.name == name), {})
    return _with_change(basis.overlay, tenant, fields, before)


def delete_tenant(basis: Basis, name: str) -> Overlay:
    """With its keys. Raises NotFound, InvalidRequest."""
    basis.tenant(name)
    if name == DEFAULT_TENANT:
        raise InvalidRequest(f"The tenant {DEFAULT_TENANT} is always there; its keys can be revoked", param="name")
    others = tuple(key for key in basis.overlay.keys if key.tenant != name)
    overlay = replace(basis.overlay, keys=others)
    if any(tenant.name == name for tenant in basis.file.tenants):
        return with_tenant(overlay, TenantChange(name, {}, deleted=True))
    return replace(overlay, tenants=tuple(each for each in overlay.tenants if each.name != name))


def create_key(basis: Basis, tenant: str, fields: Mapping[str, Any], made: AddedKey) -> Overlay:
    """`made` brings what is new: id, hash and time. Raises NotFound, Conflict, InvalidRequest."""
    known = basis.tenant(tenant)
    _only(fields, KEY_FIELDS)
    name = fields.get("name")
    _named(name, "name")
    assert isinstance(name, str)
    if any(key.name == name for key in known.keys):
        raise Conflict(f"The tenant {tenant} has a key {name}: rotate it instead", param="name", code="key_exists")
    if len(known.keys) >= _MOST_KEYS:
        raise InvalidRequest(f"The tenant {tenant} has {_MOST_KEYS} keys, and may have no more", param="name")
    plain = {field: value for field, value in fields.items() if field in ("scopes", "expires") and value is not None}
    try:
        policy = read(KeyPolicy, plain, "", "request", KeyPolicy(name))
        read(Quota, fields.get("limits", {}), "limits", "request")
    except ConfigError as error:
        raise InvalidRequest(error.message, param=error.param) from error
    if not policy.scopes:
        raise InvalidRequest(f"scopes is empty: a key opens {' or '.join(SCOPES)}", param="scopes")
    if policy.expires and policy.expires <= made.created:
        raise InvalidRequest("expires lies in the past", param="expires")
    key = replace(
        made, tenant=tenant, name=name, scopes=policy.scopes, expires=policy.expires, limits=fields.get("limits", {})
    )
    gone = tuple(each for each in basis.overlay.keys if (each.tenant, each.name) != (tenant, name))
    return with_keys(replace(basis.overlay, keys=gone), key)


def rotate_key(basis: Basis, tenant: str, name: str, overlap: float, made: AddedKey) -> Overlay:
    """Another secret for it; the one before is let in for `overlap` seconds more. Raises NotFound, InvalidRequest."""
    if not 0 <= overlap <= MOST_OVERLAP:
        raise InvalidRequest(f"overlap_s must be from 0 to {MOST_OVERLAP:.0f}", param="overlap_s")
    present, now = basis.key(tenant, name), made.created
    newest = present[-1]
    fresh = replace(
        made, tenant=tenant, name=name, scopes=newest.scopes, limits=_limits(newest.limits),
        expires=newest.expires if newest.expires > now else 0.0,
    )  # fmt: skip
    leaving = [_leaving(key, _added(basis, tenant, key, made, n), now, overlap) for n, key in enumerate(present)]
    return with_keys(basis.overlay, *leaving, fresh)


def revoke_key(basis: Basis, tenant: str, name: str, made: AddedKey) -> Overlay:
    """It is refused from now on, under all its secrets. Raises NotFound."""
    gone = [
        replace(_added(basis, tenant, key, made, number), revoked=made.created)
        for number, key in enumerate(basis.key(tenant, name))
    ]
    return with_keys(basis.overlay, *gone)


def _with_change(
    overlay: Overlay, tenant: TenantPolicy, fields: Mapping[str, Any], before: Mapping[str, Any]
) -> Overlay:
    _only(fields, CHANGEABLE)
    try:
        changed(tenant, fields)
    except ConfigError as error:
        raise InvalidRequest(error.message, param=error.param) from error
    limits = {**before.get("limits", {}), **fields.get("limits", {})}
    merged = {**before, **fields, **({"limits": limits} if limits else {})}
    return with_tenant(overlay, TenantChange(tenant.name, merged))


def _leaving(key: KeyPolicy, added: AddedKey, now: float, overlap: float) -> AddedKey:
    if not overlap:
        return replace(added, revoked=now)
    return replace(added, expires=min(now + overlap, key.expires or now + overlap))


def _added(basis: Basis, tenant: str, key: KeyPolicy, made: AddedKey, number: int) -> AddedKey:
    """What is kept of a key; the file's is taken down, so that an operator's word on it can be kept."""
    for each in basis.overlay.keys:
        if (each.tenant, each.hash) == (tenant, key.hash):
            return each
    return AddedKey(
        f"{made.id}-{number}", tenant, key.name, key.hash, key.scopes, _limits(key.limits), made.created, key.expires
    )


def _limits(quota: Quota) -> dict[str, Any]:
    return {name: value for name, value in asdict(quota).items() if value}


def _only(fields: Mapping[str, Any], known: tuple[str, ...]) -> None:
    odd = [field for field in fields if field not in known]
    if odd:
        raise InvalidRequest(f"{', '.join(odd)} cannot be set; what can: {', '.join(known)}", param=odd[0])


def _named(name: object, param: str) -> None:
    if not isinstance(name, str) or not re.search(r"\S", name):
        raise InvalidRequest(f"{param} is missing", param=param)
    try:
        check_name(name, param)
    except ConfigError as error:
        raise InvalidRequest(error.message, param=param) from error
