"""Tenants, keys and the log as plain data for people. No secret is in any of it, and no hash."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from tailrace.control.accounts.edits import CHANGEABLE, Basis
from tailrace.database.account import AddedKey, AuditRow
from tailrace.errors import NotFound
from tailrace.policy import KeyPolicy, TenantPolicy

Data = dict[str, Any]


def tenants(basis: Basis, present: Iterable[TenantPolicy]) -> list[Data]:
    """`present`: those that hold now, the default one too."""
    return [_tenant(basis, tenant) for tenant in present]


def tenant(basis: Basis, name: str) -> Data:
    """Raises NotFound."""
    return _tenant(basis, basis.tenant(name))


def maybe_tenant(basis: Basis, name: str) -> Data | None:
    """For the log: None where it is not there."""
    try:
        return tenant(basis, name)
    except NotFound:
        return None


def audit(row: AuditRow) -> Data:
    return {**asdict(row), "at": _moment(row.at)}


def _tenant(basis: Basis, found: TenantPolicy) -> Data:
    file = any(each.name == found.name for each in basis.file.tenants)
    word = next((each for each in basis.overlay.tenants if each.name == found.name), None)
    changed = sorted(word.fields) if word is not None else []
    values = {name: getattr(found, name) for name in CHANGEABLE if name != "limits"}
    return {
        "name": found.name,
        "source": "file" if file else "admin" if word is not None else "default",
        "changed": changed,  # fields that an operator has set
        **values,
        "limits": {name: limit for name, limit in asdict(found.limits).items() if limit},
        "keys": [_key(basis, found.name, key) for key in found.keys],
    }


def _key(basis: Basis, tenant: str, key: KeyPolicy) -> Data:
    added: AddedKey | None = next(
        (each for each in basis.overlay.keys if (each.tenant, each.hash) == (tenant, key.hash)), None
    )
    return {
        "name": key.name,
        "source": "file" if added is None else "admin",
        "scopes": list(key.scopes),
        "limits": {name: limit for name, limit in asdict(key.limits).items() if limit},
        "created": None if added is None else _moment(added.created),
        "expires": _moment(key.expires) if key.expires else None,
    }


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
