"""Where a webhook may go. A caller chooses the URL, so it must not reach what the caller could not.

Only hosts that the operator has listed, each with its port. Over https, but for a loopback address that is listed. What
a name resolves to is checked when it is connected to, and that very address is used: a listed name may stand for a
private address, never for this machine or its link, where metadata services are.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from tailrace.errors import InvalidRequest

_MOST = 2048  # characters of a URL
_PORTS = {"https": 443, "http": 80}
_LOCAL = "localhost"
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~:/?[]@!$&'()*+,;=%")


def check_target(url: str, listed: Sequence[str], param: str) -> None:
    """Raises InvalidRequest, which names `param`, for a URL that webhooks may not go to."""
    if len(url) > _MOST or not set(url) <= _PLAIN:
        raise _refused(f"a webhook's URL has up to {_MOST} plain characters, no fragment", param)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise _refused("the webhook's URL is not one", param) from None
    if parts.scheme not in _PORTS or not host:
        raise _refused("a webhook's URL begins with https:// and has a host", param)
    if parts.username is not None or parts.password is not None:
        raise _refused("a webhook's URL holds no user and no password", param)
    shown = f"[{host}]" if ":" in host else host
    place = f"{shown}:{port or _PORTS[parts.scheme]}"
    names = {place, shown} if (port or 443) == 443 and parts.scheme == "https" else {place}
    if names.isdisjoint(name.lower() for name in listed):
        raise _refused(f"webhooks may not go to {place} (--webhook-host)", param)
    if parts.scheme == "http" and not _loopback(host):
        raise _refused("a webhook's URL begins with https://", param)


def allowed_address(host: str, address: str) -> bool:
    """Whether a connection for the listed `host` may go to this address."""
    found = ipaddress.ip_address(address)
    found = getattr(found, "ipv4_mapped", None) or found
    if found.is_loopback:
        return _loopback(host)
    return not (found.is_link_local or found.is_multicast or found.is_unspecified or found.is_reserved)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == _LOCAL


def _refused(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="webhook_not_allowed")
