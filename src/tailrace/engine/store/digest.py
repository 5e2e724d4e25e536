"""SHA-256 of files, remembered, so that a warm start does not read a whole model to know it."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from tailrace.engine.store.atomic import replacing

CHUNK = 1 << 22
SETTLED_NS = 2_000_000_000  # a record is believed when the file was this much older than it: timestamps are coarse


def sha256_file(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """Hex digest; `progress` hears the bytes read so far."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            if progress is not None:
                progress(file.tell())
    return digest.hexdigest()


def sha256_files(paths: Sequence[Path], digest: Callable[[Path], str]) -> str:
    """One digest for a model: of its only file, or of the digests and names of several, in their order."""
    if len(paths) == 1:
        return digest(paths[0])
    lines = "".join(f"{digest(path)}  {path.name}\n" for path in paths)
    return hashlib.sha256(lines.encode()).hexdigest()


def remembered_sha256(path: Path, folder: Path) -> str:
    """The digest of `path`, from a record in `folder` while path, size, times and inode are unchanged."""
    path = path.resolve()
    record = folder / f"{hashlib.sha256(str(path).encode()).hexdigest()[:24]}.json"
    identity = _identity(path)
    known = _read_record(record, identity)
    if known is not None:
        return known
    digest = sha256_file(path)
    with contextlib.suppress(OSError), replacing(record) as file:  # an unwritable folder costs time, nothing else
        file.write(json.dumps({"identity": identity, "sha256": digest}).encode())
    return digest


def _identity(path: Path) -> list[str | int]:
    status = path.stat()
    return [str(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _read_record(record: Path, identity: list[str | int]) -> str | None:
    try:
        content = json.loads(record.read_bytes())
        written = record.stat().st_mtime_ns
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or content.get("identity") != identity:
        return None
    changed = max(int(identity[2]), int(identity[3]))
    digest = content.get("sha256")
    return digest if isinstance(digest, str) and written - changed > SETTLED_NS else None
