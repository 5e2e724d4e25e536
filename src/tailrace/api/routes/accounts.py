"""Tenants and keys, listed and changed while the server runs, and the log of it. Asks for a key with the scope `admin`.

What is changed here lies over the settings file. A key itself is in one answer only: that of its making.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.audited import audited, row
from tailrace.api.auth import authorize_admin
from tailrace.api.openapi import errors
from tailrace.api.plain import json_reply, object_of
from tailrace.api.state import state_of
from tailrace.api.table import Table
from tailrace.control.accounts import edits, views
from tailrace.control.accounts.accounts import MOST_ROWS, Accounts, Edit
from tailrace.control.accounts.edits import Basis
from tailrace.control.keys import NewKey, new_key
from tailrace.database.account import AddedKey, AuditRow
from tailrace.errors import InvalidRequest
from tailrace.protocol.responses.page import whole_number

_LAST = 2**31 - 1  # number of a row

routes = Table("admin", prefix="/admin", guard=authorize_admin)


@routes.get("/tenants", responses=errors(401, 403))
async def list_tenants(request: Request) -> Response:
    """All tenants as they hold now: where each comes from, what an operator has changed, its keys without secrets."""
    found = state_of(request)
    return json_reply({"data": views.tenants(found.accounts.basis(), found.pipeline.tenants)})


@routes.get("/tenants/{name}", responses=errors(401, 403, 404))
async def get_tenant(request: Request, name: str) -> Response:
    return json_reply(views.tenant(state_of(request).accounts.basis(), name))


@routes.post("/tenants", responses=errors(400, 401, 403, 409, 503))
@audited("tenant.create", notes_itself=True)
async def create_tenant(request: Request) -> Response:
    """`{"name": "acme", "weight": 2, "limits": {"requests_per_minute": 60}}`: fields as in the settings file."""
    fields = await object_of(request)
    basis = await _change(
        request, "tenant.create", str(fields.get("name")), lambda basis: edits.create_tenant(basis, fields)
    )
    return _tenant(request, basis, str(fields["name"]), 201)


@routes.patch("/tenants/{name}", responses=errors(400, 401, 403, 404, 503))
@audited("tenant.change", notes_itself=True)
async def patch_tenant(request: Request, name: str) -> Response:
    """Another weight, priority, mode or other limits, from the next decision on: `{"weight": 2}`,
    `{"limits": {"requests_per_minute": 60}}`. What is not named stays."""
    fields = await object_of(request)
    basis = await _change(request, "tenant.change", name, lambda basis: edits.change_tenant(basis, name, fields))
    return _tenant(request, basis, name)


@routes.delete("/tenants/{name}", responses=errors(400, 401, 403, 404, 503))
@audited("tenant.delete", notes_itself=True)
async def delete_tenant(request: Request, name: str) -> Response:
    """With its keys, which are refused at once; what it runs is finished."""
    await _change(request, "tenant.delete", name, lambda basis: edits.delete_tenant(basis, name))
    return json_reply({"name": name, "deleted": True, "kept": state_of(request).accounts.kept})


@routes.post("/tenants/{name}/keys", responses=errors(400, 401, 403, 404, 409, 503))
@audited("key.create", notes_itself=True)
async def create_key(request: Request, name: str) -> Response:
    """`{"name": "ci", "scopes": ["inference"], "expires": "2027-01-31", "limits": {...}}`. The answer has the key, this
    once."""
    fields = await object_of(request)
    secret, made = _made(request)
    called = str(fields.get("name"))
    await _change(request, "key.create", f"{name}/{called}", lambda basis: edits.create_key(basis, name, fields, made))
    return _secret(request, name, called, secret)


@routes.post("/tenants/{name}/keys/{key}/rotate", responses=errors(400, 401, 403, 404, 503))
@audited("key.rotate", notes_itself=True)
async def rotate_key(request: Request, name: str, key: str) -> Response:
    """Another secret under the same name, in this answer alone. The one before is let in for `overlap_s` seconds more
    (0)."""
    fields = await object_of(request)
    overlap = fields.pop("overlap_s", 0)
    if fields or isinstance(overlap, bool) or not isinstance(overlap, int | float):
        raise InvalidRequest("What can be set is overlap_s, a number of seconds", param=next(iter(fields), "overlap_s"))
    secret, made = _made(request)
    await _change(
        request, "key.rotate", f"{name}/{key}", lambda basis: edits.rotate_key(basis, name, key, overlap, made)
    )
    return _secret(request, name, key, secret)


@routes.delete("/tenants/{name}/keys/{key}", responses=errors(401, 403, 404, 503))
@audited("key.revoke", notes_itself=True)
async def revoke_key(request: Request, name: str, key: str) -> Response:
    """It is refused from now on, on other servers within seconds; what it sent before is finished."""
    _, made = _made(request)
    await _change(request, "key.revoke", f"{name}/{key}", lambda basis: edits.revoke_key(basis, name, key, made))
    return json_reply({"tenant": name, "name": key, "revoked": True, "kept": state_of(request).accounts.kept})


@routes.get("/audit", responses=errors(400, 401, 403, 503))
async def audit(request: Request) -> Response:
    """What operators did and were refused, the latest first: `limit` (100) rows, those `before` a number."""
    asked = request.query_params
    most, before = whole_number(asked, "limit", 100, MOST_ROWS), whole_number(asked, "before", _LAST, _LAST)
    accounts = state_of(request).accounts
    rows = await accounts.audit(most, before)
    return json_reply({"data": [views.audit(each) for each in rows], "kept": accounts.kept})


async def _change(request: Request, action: str, target: str, edit: Edit) -> Basis:
    accounts: Accounts = state_of(request).accounts
    return await accounts.change(edit, _told(request, action, target))


def _told(request: Request, action: str, target: str) -> Callable[[Basis, Basis], AuditRow]:
    tenant = target.partition("/")[0]

    def told(before: Basis, after: Basis) -> AuditRow:
        was, now = views.maybe_tenant(before, tenant), views.maybe_tenant(after, tenant)
        return row(request, action, target, 200, before=was, after=now)

    return told


def _made(request: Request) -> tuple[NewKey, AddedKey]:
    """A secret, and what is kept of it."""
    secret = new_key()
    return secret, AddedKey(uuid4().hex, "", "", secret.hash, created=state_of(request).clock.wall())


def _tenant(request: Request, basis: Basis, name: str, status: int = 200) -> Response:
    response = json_reply({**views.tenant(basis, name), "kept": state_of(request).accounts.kept})
    response.status_code = status
    return response


def _secret(request: Request, tenant: str, name: str, secret: NewKey) -> Response:
    response = json_reply({"tenant": tenant, "name": name, "key": secret.key, "kept": state_of(request).accounts.kept})
    response.status_code = 201
    response.headers["cache-control"] = "no-store"
    return response
