"""Who may call: API keys, known only as SHA-256 digests. Health and metrics are open, for probes and scrapers."""

from __future__ import annotations

import hashlib
import hmac

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from tailrace.errors import Unauthorized

_bearer = HTTPBearer(auto_error=False, description="An API key; only asked for when the server has keys.")


def accepts(digests: tuple[str, ...], key: str) -> bool:
    """Compares with every digest, so that the time taken tells nothing about which one it was."""
    mine = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
    return sum([hmac.compare_digest(mine, digest) for digest in digests]) > 0


async def authorize(request: Request, given: HTTPAuthorizationCredentials | None = Depends(_bearer)) -> None:  # noqa: B008
    """Raises Unauthorized. `Authorization: Bearer KEY`, or `x-api-key: KEY`."""
    digests: tuple[str, ...] = request.app.state.tailrace.config.api.api_keys
    if not digests:
        return
    key = given.credentials if given is not None else request.headers.get("x-api-key", "")
    if not key:
        raise Unauthorized("An API key is needed: send Authorization: Bearer KEY", code="missing_api_key")
    if not accepts(digests, key):
        raise Unauthorized("The API key is not one that this server accepts")
