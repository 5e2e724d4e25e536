"""The store, the port, the installation."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from tailrace.config import ApiConfig, Config, EngineConfig
from tailrace.doctor.finding import Level
from tailrace.doctor.machine import Machine
from tailrace.doctor.place import place_findings
from tests.doctor.support import by_check, machine, refusing


def config(store: Path, port: int = 8000) -> Config:
    return Config(engine=EngineConfig(store=str(store)), api=ApiConfig(port=port))


def test_a_healthy_place(tmp_path: Path) -> None:
    found = by_check(place_findings(machine(tmp_path), config(tmp_path / "not" / "yet")))
    assert {finding.level for finding in found.values()} == {Level.OK}
    assert found["store"].text == f"{tmp_path / 'not' / 'yet'}: 100.0 GiB free, models: none yet"
    assert found["port"].text == "127.0.0.1:8000 is free"
    assert found["installation"].facts["native"]


def test_little_disk_and_a_store_that_is_a_file(tmp_path: Path) -> None:
    little = machine(tmp_path, disk_free=lambda folder: 1 << 20)
    found = by_check(place_findings(little, config(tmp_path)))["store"]
    assert (found.level, found.facts["free"]) == (Level.WARN, 1 << 20)
    (tmp_path / "file").touch()
    broken = by_check(place_findings(machine(tmp_path), config(tmp_path / "file" / "store")))["store"]
    assert broken.level is Level.FAIL
    assert "--store" in broken.advice


def test_a_port_in_use(tmp_path: Path) -> None:
    taken = machine(tmp_path, listen=refusing(OSError(errno.EADDRINUSE, "Address already in use")))
    found = by_check(place_findings(taken, config(tmp_path)))["port"]
    assert (found.level, found.text) == (Level.FAIL, "127.0.0.1:8000: Address already in use")
    assert "--port" in found.advice


def test_a_real_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert by_check(place_findings(Machine(), config(tmp_path, port)))["port"].level is Level.FAIL
    assert by_check(place_findings(Machine(), config(tmp_path, port)))["port"].level is Level.OK
