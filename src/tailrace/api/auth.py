"""Who is calling: from a key to a principal, kept on the request. Health and metrics are open, for probes."""

from __future__ import annotations

import re

from starlette.requests import Request

from tailrace.api.audited import row
from tailrace.api.state import AppState, state_of
from tailrace.api.wire import header
from tailrace.control.keys import Principal
from tailrace.errors import Forbidden, RequestError
from tailrace.observe import current

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_OWN_NAME = re.compile(r"(127\.0\.0\.1|\[::1\]|localhost)(:\d{1,5})?")  # in a Host header


def authorize(request: Request) -> None:
    """`Authorization: Bearer KEY`, or `x-api-key: KEY`. Raises Unauthorized, or Forbidden without the scope."""
    _require(_identify(request), "inference")


def authorize_admin(request: Request) -> None:
    """As `authorize`, for /admin. A server without any keys that only this machine reaches is its user's own. Who is
    turned away is in the audit log."""
    state = state_of(request)
    try:
        principal = _identify(request)
        if not (state.pipeline.tenants.open and _own_machine(request, state)):
            _require(principal, "admin")
    except RequestError as error:
        state.accounts.note(row(request, f"{request.method} {request.url.path}", "", error.status, error.code or ""))
        raise


def knows_tenants(request: Request) -> bool:
    """Whether the caller may hear of every tenant: its key has the scope `admin`, or there are no keys. False for who
    brings none; raises Unauthorized for one that is not good."""
    if state_of(request).pipeline.tenants.open:
        return True
    return bool(_key(request)) and "admin" in _identify(request).scopes


def principal_of(request: Request) -> Principal:
    principal: Principal = request.scope["state"]["principal"]
    return principal


def _identify(request: Request) -> Principal:
    state = state_of(request)
    principal = state.pipeline.tenants.identify(_key(request), state.clock.wall())
    request.scope["state"]["principal"] = principal
    current.identified(principal.tenant)
    return principal


def _key(request: Request) -> str:
    scheme, _, bearer = (header(request.scope, b"authorization") or "").partition(" ")
    if scheme.lower() == "bearer" and (key := bearer.strip()):
        return key
    return header(request.scope, b"x-api-key") or ""


def _require(principal: Principal, scope: str) -> None:
    if scope not in principal.scopes:
        raise Forbidden(f"This key does not have the scope {scope}", code="missing_scope")


def _own_machine(request: Request, state: AppState) -> bool:
    """Asked from this machine, under a name that no foreign name server can give it, and by no foreign web page that
    its browser shows: a browser says with `Origin` and `Sec-Fetch-Site` where a page's request comes from."""
    host, origin, site = (header(request.scope, name) for name in (b"host", b"origin", b"sec-fetch-site"))
    if state.config.api.host not in LOOPBACK or not _OWN_NAME.fullmatch(host or ""):
        return False
    return origin in (None, f"{request.scope['scheme']}://{host}") and site in (None, "same-origin", "none")
