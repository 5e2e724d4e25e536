"""Runs cases in a peer's environment and prints a line for each. Imports the standard library only."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

Case = Callable[[str], Any]


def run(cases: Sequence[Case]) -> int:
    """Each case with the server's address, which is the first argument of the command line; 1 if one failed."""
    failed = 0
    for case in cases:
        try:
            said = case(sys.argv[1]) or ""
        except Exception as error:
            failed += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(
                f"FAILED  {case.__name__}: {type(error).__name__} at {where.name}:{where.lineno}: {error}", flush=True
            )
        else:
            print(f"passed  {case.__name__}  {said}".rstrip(), flush=True)
    print(f"{len(cases) - failed} passed, {failed} failed")
    return 1 if failed else 0
