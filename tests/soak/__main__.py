"""Many random requests with random aborts through the engine; every answer checked, nothing may leak.

    python -m tests.soak [--requests 10000] [--seed 0]

Minutes, so it is no part of the suite, which does the same with 500. The KV books are proven after every step.
"""

from __future__ import annotations

import argparse
import time

from tests.engine.test_loop import soak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started = time.monotonic()
    soak(options.requests, options.seed)
    print(f"{options.requests} requests, nothing leaked, every token right ({time.monotonic() - started:.0f} s)")


if __name__ == "__main__":
    main()
