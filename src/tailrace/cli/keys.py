"""`tailrace keys new`: a key that is shown once, let in by lines of the settings file or by a running server."""

from __future__ import annotations

import asyncio
from typing import Any

import typer

from tailrace.cli.top.source import HttpSource
from tailrace.control.keys import new_key
from tailrace.errors import ConfigError
from tailrace.frozen import frozen
from tailrace.policy import SCOPES, check_expires, check_name


def print_new_key(name: str, scopes: list[str], expires: str) -> None:
    """The key goes to stdout alone, so that it can be piped; all else to stderr. Raises ConfigError."""
    _check(name, scopes, expires)
    made = new_key()
    lines = ["[[tenants.keys]]", f'name = "{name}"', f'hash = "{made.hash}"']
    if scopes:
        lines.append(f"scopes = [{', '.join(f'{chr(34)}{scope}{chr(34)}' for scope in scopes)}]")
    if expires:
        lines.append(f"expires = {expires}")
    typer.echo("The key, shown this once:", err=True)
    typer.echo(made.key)
    typer.echo("Its lines for the settings file, below their [[tenants]] entry:\n" + "\n".join(lines), err=True)


@frozen
class Server:
    """One that runs, a key for it with the scope `admin`, and whose key is to be made."""

    url: str
    key: str
    tenant: str


def make_key_at(server: Server, name: str, scopes: list[str], expires: str) -> None:
    """As `print_new_key`, for a key that the server lets in from now on. Raises ConfigError, Unavailable, Unauthorized,
    and what the server refuses."""
    _check(name, scopes, expires)
    fields: dict[str, Any] = {"name": name}
    if scopes:
        fields["scopes"] = scopes
    if expires:
        fields["expires"] = expires
    found = asyncio.run(_ask(server, fields))
    until = "" if found["kept"] else ", until the server ends: it keeps nothing"
    typer.echo(f"A key of the tenant {server.tenant}, shown this once; it is let in from now on{until}:", err=True)
    typer.echo(found["key"])


async def _ask(server: Server, fields: dict[str, Any]) -> dict[str, Any]:
    source = HttpSource(server.url, server.key)
    try:
        return await source.new_key(server.tenant, fields)
    finally:
        await source.close()


def _check(name: str, scopes: list[str], expires: str) -> None:
    for scope in scopes:
        if scope not in SCOPES:
            raise ConfigError(f"--scope {scope}: accepted is {' | '.join(SCOPES)}", param="--scope")
    check_name(name, f"NAME {name!r}")
    if expires:
        check_expires(expires, "--expires")
