"""The address that the server will listen on, taken before anything that costs time.

Until the server is ready the port refuses connections. Imports nothing heavy: `serve` has the address within
milliseconds, so that a wrong one is told before a model is loaded.
"""

from __future__ import annotations

import socket

from tailrace.errors import ConfigError


def bound(host: str, port: int) -> socket.socket:
    """A socket that has the address and does not listen yet. Raises ConfigError when it cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family[0], family[1])
    except (OSError, UnicodeError) as error:
        raise _refused(host, port, error) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(family[4])
    except OSError as error:
        listener.close()
        raise _refused(host, port, error) from None
    return listener


def listen(listener: socket.socket) -> str:
    """Take connections from here on (they wait until someone serves them). Returns the address, with the real port.

    Raises ConfigError when another process has begun to listen there in the meantime.
    """
    host, port = listener.getsockname()[:2]
    try:
        listener.listen()
    except OSError as error:
        raise _refused(host, port, error) from None
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _refused(host: str, port: int, error: OSError | UnicodeError) -> ConfigError:
    reason = getattr(error, "strerror", None) or error
    return ConfigError(
        f"cannot listen on {host} port {port}: {reason}. Choose another --host or --port", param="api.port"
    )
