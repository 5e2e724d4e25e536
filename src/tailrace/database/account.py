"""What an operator has laid over the settings file: changes to tenants, keys, and the log of who did what.

Plain values, as they are kept; what they mean for a request is `control.accounts`'. A key is here by its hash only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from tailrace.frozen import frozen


@frozen
class TenantChange:
    """`fields`: as in the settings file, but `keys`; what they leave out is as the file has it. `deleted`: also where
    the file has it."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    deleted: bool = False


@frozen
class AddedKey:
    """Those of one name stand in for the file's key of that name. Times are seconds since the epoch, 0: never."""

    id: str
    tenant: str
    name: str
    hash: str
    scopes: tuple[str, ...] = ("inference",)
    limits: Mapping[str, Any] = field(default_factory=dict)
    created: float = 0.0
    expires: float = 0.0
    revoked: float = 0.0


@frozen
class Overlay:
    """`version` moves with every change."""

    tenants: tuple[TenantChange, ...] = ()
    keys: tuple[AddedKey, ...] = ()
    version: int = 0


@frozen
class AuditRow:
    """What somebody with an admin key, or without a good one, did or wanted. `before` and `after`: of what was changed,
    without secrets. `number`: in order of time; 0: not kept yet."""

    at: float
    tenant: str
    key: str
    action: str
    target: str
    status: int
    error: str = ""
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    request_id: str = ""
    server: str = ""
    number: int = 0
