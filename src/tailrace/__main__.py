"""The `tailrace` script, and `python -m tailrace`: the command line, with Ctrl-C quiet from the first moment on."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Until the commands are imported Ctrl-C ends the process as it ends one that is not Python; then it is theirs."""
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tailrace.cli.direct import command  # noqa: PLC0415 - a tenth of a second, in which nothing needs cleaning up

    run = command(sys.argv[1:])
    if handler is not None:
        signal.signal(signal.SIGINT, handler)
    run()


if __name__ == "__main__":
    main()
