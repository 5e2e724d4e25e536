"""API keys: making one, and finding whose one is. A key itself is never kept, only its hash."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

from tailrace.frozen import frozen


@frozen
class Principal:
    """Who is calling, by the key it brought. What its tenant may do is looked up when it matters: it can change."""

    tenant: str
    key: str  # the key's name
    scopes: frozenset[str]
    expires: float = 0.0  # seconds since the epoch; 0: never


@dataclass(frozen=True, slots=True)
class NewKey:
    """`key` is to be shown once and forgotten; `hash` goes into the settings file."""

    key: str = field(repr=False)
    hash: str


def new_key() -> NewKey:
    """256 random bits, so that a fast hash is as good as a slow one."""
    key = f"sk-{secrets.token_urlsafe(32)}"
    salt = secrets.token_hex(8)
    return NewKey(key, f"sha256:{salt}:{digest(key, salt)}")


def digest(key: str, salt: str = "") -> str:
    return hashlib.sha256((salt + key).encode("utf-8", "surrogateescape")).hexdigest()


class KeyRing:
    """Compares a key with every hash there is, so that the time taken tells nothing about which one it was."""

    def __init__(self, entries: Iterable[tuple[str, str, Principal]]) -> None:
        """`entries` are (salt, hex digest over salt and key, whose it is)."""
        self._entries = tuple(entries)
        self._salts = tuple(sorted({salt for salt, _, _ in self._entries}))

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: str) -> Principal | None:
        mine = {salt: digest(key, salt) for salt in self._salts}
        found = None
        for salt, theirs, principal in self._entries:
            if hmac.compare_digest(mine[salt], theirs):
                found = principal
        return found
