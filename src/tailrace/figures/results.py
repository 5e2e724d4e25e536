"""Results as files of JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from tailrace.errors import ConfigError


def write(path: Path, data: dict[str, Any], flag: str = "--json") -> None:
    """Raises ConfigError that names `flag`."""
    try:
        path.write_bytes(orjson.dumps(data, option=orjson.OPT_APPEND_NEWLINE))
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror or error}", param=flag) from error
