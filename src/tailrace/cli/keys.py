"""`tailrace keys new`: a key that is shown once, and the lines of the settings file that let it in."""

from __future__ import annotations

import typer

from tailrace.control.keys import new_key
from tailrace.errors import ConfigError
from tailrace.policy import SCOPES, check_expires, check_name


def print_new_key(name: str, scopes: list[str], expires: str) -> None:
    """The key goes to stdout alone, so that it can be piped; all else to stderr. Raises ConfigError."""
    for scope in scopes:
        if scope not in SCOPES:
            raise ConfigError(f"--scope {scope}: accepted is {' | '.join(SCOPES)}", param="--scope")
    check_name(name, f"NAME {name!r}")
    if expires:
        check_expires(expires, "--expires")
    made = new_key()
    lines = ["[[tenants.keys]]", f'name = "{name}"', f'hash = "{made.hash}"']
    if scopes:
        lines.append(f"scopes = [{', '.join(f'{chr(34)}{scope}{chr(34)}' for scope in scopes)}]")
    if expires:
        lines.append(f"expires = {expires}")
    typer.echo("The key, shown this once:", err=True)
    typer.echo(made.key)
    typer.echo("Its lines for the settings file, below their [[tenants]] entry:\n" + "\n".join(lines), err=True)
