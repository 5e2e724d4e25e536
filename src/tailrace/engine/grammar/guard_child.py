"""What runs in the guard's process: first the limits, then a grammar a line, all in JSON; for each line the answer is
`null`, or the reason why not. Imports nothing of tailrace, so that it starts quickly and its memory is llguidance's."""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    memory, seconds, path = sys.argv[1:]
    sys.path[:] = path.split(os.pathsep)
    import resource  # noqa: PLC0415 - after the path is set

    import llguidance  # noqa: PLC0415

    resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    os.nice(5)  # it competes with the engine for the processors
    limits = llguidance.LLParserLimits(**json.loads(sys.stdin.readline()))
    vocabulary = llguidance.LLTokenizer("byte")
    print("null", flush=True)
    for line in sys.stdin:
        # The bound itself, in processor time and at most two seconds late; also where the parent is gone.
        used = resource.getrusage(resource.RUSAGE_SELF)
        end = int(used.ru_utime + used.ru_stime) + int(seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (end, resource.RLIM_INFINITY))
        matcher = llguidance.LLMatcher(vocabulary, json.loads(line), log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_ff_tokens()
            matcher.compute_bitmask()
        print(json.dumps(matcher.get_error() or None), flush=True)


if __name__ == "__main__":
    main()
