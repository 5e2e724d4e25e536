"""The name of this server among those that share its database, the same after it has ended in whatever way.

Whoever has the data folder has the name: a server that comes back takes up what it held at once, and a second one in
the same folder has a name of its own for as long as it runs.
"""

from __future__ import annotations

import fcntl
import re
from os import urandom
from pathlib import Path

_NAME = re.compile(r"[0-9a-f]{12}")


class Instance:
    """Holds the name until `close()`, or the end of the process. `folder` None: a new one."""

    def __init__(self, folder: Path | None = None) -> None:
        self.name = urandom(6).hex()
        self._file = None
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self._file = (folder / "instance").open("a+")
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # somebody has it, or it cannot be written: then nothing is known after a restart
                self.close()
            else:
                self._agree()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _agree(self) -> None:
        """On the name that is written there, or will be."""
        assert self._file is not None
        self._file.seek(0)
        said = self._file.read().strip()
        if _NAME.fullmatch(said):
            self.name = said
            return
        self._file.truncate(0)
        self._file.write(self.name)
        self._file.flush()
