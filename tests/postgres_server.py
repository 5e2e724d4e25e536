"""A real PostgreSQL on a free port, for the tests of what is kept in a database."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

_USER = "postgres"  # what Debian's package makes: the server refuses to run as root


def _programs() -> Path | None:
    """Debian keeps them off the path, one folder a version."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return versions[-1].parent if versions else None


PROGRAMS = _programs()
needs_postgres = pytest.mark.skipif(
    PROGRAMS is None, reason="PostgreSQL is not installed (Debian: apt-get install postgresql)"
)


class Postgres:
    """A running server. `url(name)` is a database of that name, made new."""

    def __init__(self, folder: Path) -> None:
        assert PROGRAMS is not None
        self._programs, self._data, self._owner = PROGRAMS, folder / "data", os.geteuid()
        if self._owner == 0:
            self._owner = pwd.getpwnam(_USER).pw_uid
            os.chown(folder, self._owner, -1)
        self._folder = folder
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", _USER, "--no-sync")
        self.port = 0
        self.start()

    def url(self, name: str) -> str:
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", _USER, name)
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/{name}"

    def start(self) -> None:
        """Again on its port, after `stop`."""
        for _ in range(5):  # somebody else may take the free port first
            port = self.port or _free_port()
            options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
            log = str(self._folder / "log")
            done = self._call("pg_ctl", "-D", str(self._data), "-w", "-t", "30", "-l", log, "-o", options, "start")
            if done.returncode == 0:
                self.port = port
                return
            time.sleep(0.1)
        raise AssertionError((self._folder / "log").read_text())

    def stop(self) -> None:
        """At once: whoever is connected loses its connection."""
        self._run("pg_ctl", "-D", str(self._data), "-w", "-m", "immediate", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        done = self._call(program, *arguments)
        assert done.returncode == 0, done.stdout

    def _call(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The server inherits what it is started with: no pipe, which would stay open as long as it runs."""
        with open(self._folder / "said", "w+", encoding="utf-8") as said:
            done = subprocess.run(
                [str(self._programs / program), *arguments], stdout=said, stderr=said, check=False, cwd=self._folder,
                user=self._owner, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
            )  # fmt: skip
            said.seek(0)
            return subprocess.CompletedProcess(done.args, done.returncode, said.read())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    """In a folder of its own: pytest closes its folders to other users, also while it runs a second time."""
    with TemporaryDirectory(prefix="tailrace-postgres-") as folder:
        server = Postgres(Path(folder))
        try:
            yield server
        finally:
            server.stop()
