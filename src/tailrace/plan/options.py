"""Everything that can be asked of a simulation, besides the settings: each field is a flag of `tailrace simulate`.

Light on purpose: the command line imports it to print help.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.errors import ConfigError
from tailrace.options import check_choices, check_positive, dashed, flag

BASELINES = ("static", "dynamic", "unchunked", "reserve", "fcfs")


@dataclass(frozen=True, kw_only=True)
class Options:
    # what arrives
    rate_scale: float = flag(1.0, "multiply how many requests arrive in a second", "X")
    length_scale: float = flag(1.0, "multiply the lengths of prompts, answers and shared prefixes", "X")
    rate: float | None = flag(None, "for a trace of lengths only: requests a second, Poisson", "R")
    window: str = flag("", "replay only what arrives between these seconds of the trace", "FROM-TO")
    requests: int | None = flag(None, "at most so many requests", "N")
    max_input: int = flag(0, "shorten longer prompts to so many tokens; 0: none", "N")
    max_output: int = flag(0, "shorten longer answers to so many tokens; 0: none", "N")
    max_tokens: int = flag(0, "what every client asks for as max_tokens; 0: exactly the answer's length", "N")
    retries: int = flag(0, "how often a refused client comes back, each time when it was told to", "N")
    seed: int = flag(0, "the same seed gives the same simulation", "N")
    # the machine
    steps: str = flag("typical", "step times: typical, measure (the model of the settings, here and now), five numbers "
                      "a,b,c,d,e, or a JSON file with them", "FROM")  # fmt: skip
    noise: float = flag(0.075, "spread of step times: deviation of the logarithm of measured / predicted", "X")
    kv_tokens: int = flag(65_536, "room of the KV cache in tokens; measured with --steps measure", "N")
    baseline: tuple[str, ...] = flag((), "take an idea back, repeatable", choices=BASELINES, many=True)
    batch_window: str = flag("100ms", "with --baseline dynamic: how long a batch that is not full waits", "TIME")
    # what is made of it
    slo: str = flag("", "bounds a good request meets, such as ttft=500ms,tpot=50ms,itl=200ms,e2e=10s", "BOUNDS")
    json: str = flag("", "write all numbers, and each request's, to this file", "FILE")
    plot: str = flag("", "draw charts: OUT.html needs nothing, OUT.png needs tailrace[plots]", "FILE")

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "rate_scale", "length_scale", "rate", "requests", "kv_tokens")
        for name in ("max_input", "max_output", "max_tokens", "retries", "noise"):
            if not 0 <= getattr(self, name) < 1e9:
                raise ConfigError(f"{dashed(name)} {getattr(self, name)}: accepted is 0 or more", param=dashed(name))
        if {"static", "dynamic"} <= set(self.baseline):
            raise ConfigError("--baseline static and --baseline dynamic exclude each other", param="--baseline")
