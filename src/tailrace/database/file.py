"""What uploaded and made files are, wherever they are kept."""

from __future__ import annotations

from tailrace.frozen import frozen


@frozen
class StoredFile:
    """`name` is for people and never a path. `created`: seconds since the epoch."""

    id: str
    tenant: str
    purpose: str
    name: str
    size: int
    created: float
