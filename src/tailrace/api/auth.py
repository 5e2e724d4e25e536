"""Who is calling: from a key to a principal, kept on the request. Health and metrics are open, for probes."""

from __future__ import annotations

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from tailrace.api.state import AppState
from tailrace.control.keys import Principal
from tailrace.errors import Forbidden

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_bearer = HTTPBearer(auto_error=False, description="An API key; only asked for when the server has keys.")


async def authorize(request: Request, given: HTTPAuthorizationCredentials | None = Depends(_bearer)) -> None:  # noqa: B008
    """`Authorization: Bearer KEY`, or `x-api-key: KEY`. Raises Unauthorized, or Forbidden without the scope."""
    _require(_identify(request, given), "inference")


async def authorize_admin(
    request: Request,
    given: HTTPAuthorizationCredentials | None = Depends(_bearer),  # noqa: B008
) -> None:
    """As `authorize`, for /admin. A server without any keys that only this machine reaches is its user's own."""
    state: AppState = request.app.state.tailrace
    principal = _identify(request, given)
    if not (state.pipeline.tenants.open and _own_machine(request, state)):
        _require(principal, "admin")


def principal_of(request: Request) -> Principal:
    principal: Principal = request.state.principal
    return principal


def _identify(request: Request, given: HTTPAuthorizationCredentials | None) -> Principal:
    state: AppState = request.app.state.tailrace
    key = given.credentials if given is not None else request.headers.get("x-api-key", "")
    principal = request.state.principal = state.pipeline.tenants.identify(key, state.clock.wall())
    return principal


def _require(principal: Principal, scope: str) -> None:
    if scope not in principal.scopes:
        raise Forbidden(f"This key does not have the scope {scope}", code="missing_scope")


def _own_machine(request: Request, state: AppState) -> bool:
    """No web page of somebody else's that this machine's browser shows: those have an origin, or another host."""
    host = request.url.hostname or ""
    return state.config.api.host in LOOPBACK and host in LOOPBACK and "origin" not in request.headers
