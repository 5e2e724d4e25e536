"""Everything that can be asked of a benchmark: each field is a flag of `tailrace bench`, described once, here.

Light on purpose: the command line imports it to print help. Texts that need parsing are parsed by who uses them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.errors import ConfigError
from tailrace.options import check_choices, check_positive, dashed, flag

WORKLOADS = ("random", "shared-prefix", "multi-turn", "mixed", "file")
ARRIVALS = ("poisson", "gamma", "constant")
ENDPOINTS = ("auto", "chat", "completions")
LENGTH_FORMS = "fixed:N, uniform:A-B, normal:MEAN,STD, lognormal:MEAN,SIGMA or file:PATH"


@dataclass(frozen=True, kw_only=True)
class Options:
    # the server
    url: str = flag("http://127.0.0.1:8000", "the server, with or without /v1", "URL")
    model: str = flag("", "the model to ask; empty: the first that the server lists", "NAME")
    key: str = flag("", "the server's API key", "KEY")
    endpoint: str = flag("auto", "the route; auto: what the workload needs", choices=ENDPOINTS)
    timeout: str = flag("600s", "longest wait for one answer", "TIME")
    on_429: str = flag("count", "a refused request (429, 503): count it, or wait as told and retry it",
                       choices=("count", "retry"))  # fmt: skip
    temperature: float = flag(0.0, "of sampling; 0 is greedy", "T")
    # when requests are sent
    concurrency: int | None = flag(None, "closed loop: so many requests (or conversations) at any time", "N")
    rate: float | None = flag(None, "open loop: requests (or conversations) a second", "R")
    arrival: str = flag("poisson", "open loop: how requests arrive", choices=ARRIVALS)
    cv: float = flag(2.0, "with gamma: deviation of the times between arrivals over their mean; 1 is poisson", "CV")
    trace: str = flag("", "CSV or JSONL with lengths, and arrivals unless a rate or concurrency is given", "FILE")
    speedup: float = flag(1.0, "with a trace: play its arrivals so many times faster", "X")
    requests: int | None = flag(None, "how many requests; 100 unless a duration or a trace says otherwise", "N")
    duration: str = flag("", "send for so long, then wait for the answers", "TIME")
    warmup: int = flag(2, "requests before the clock starts, which are not counted", "N")
    # what is sent
    workload: str = flag("random", "what the prompts are", choices=WORKLOADS)
    input: str = flag("fixed:256", f"prompt tokens: {LENGTH_FORMS}", "LENGTHS")
    output: str = flag("fixed:64", "answer tokens, in the same forms", "LENGTHS")
    prefixes: int = flag(4, "with shared-prefix: how many prefixes", "K")
    prefix_tokens: int = flag(512, "with shared-prefix: tokens of a prefix, before those of --input", "P")
    turns: str = flag("fixed:3", "with multi-turn: turns of a conversation, in the forms of lengths", "LENGTHS")
    think: str = flag("", "with multi-turn: pause between an answer and the next question", "TIME")
    mix: tuple[str, ...] = flag((), "with mixed, repeatable: 'WEIGHT INPUT OUTPUT'", "MIX", many=True)
    prompts: str = flag("", "with file: JSONL with one prompt or conversation a line", "FILE")
    prompt_field: str = flag("prompt", "with file: a text, a list of texts (turns), or messages", "NAME")
    output_field: str = flag("", "with file: the field with the answer's length in tokens", "NAME")
    length_scale: float = flag(1.0, "with a trace: multiply its lengths", "X")
    max_input: int = flag(0, "shorten longer prompts to so many tokens; 0: none", "N")
    max_output: int = flag(0, "ask for at most so many answer tokens; 0: no bound", "N")
    natural_end: bool = flag(False, "let answers end by themselves instead of at the asked length")
    seed: int | None = flag(None, "the same seed gives the same prompts, lengths and arrivals; drawn if not given", "N")
    # what is made of it
    slo: str = flag("", "bounds a good request meets, such as ttft=500ms,tpot=50ms,itl=200ms,e2e=10s", "BOUNDS")
    attainment: float = flag(0.99, "part of the requests that must meet the SLO in a sweep", "X")
    repeats: int = flag(1, "measure so many times, with new prompts each, to know the noise", "N")
    sweep: bool = flag(False, "double the concurrency or rate, then bisect, to find the knee")
    sweep_max: float = flag(1024.0, "highest load of a sweep", "N")
    json: str = flag("", "write everything measured to this file", "FILE")
    plot: str = flag("", "draw charts: OUT.html needs nothing, OUT.png needs tailrace[plots]", "FILE")

    def __post_init__(self) -> None:
        check_choices(self)
        self._check_numbers()
        self._check_pairs()

    @property
    def open_loop(self) -> bool:
        return self.rate is not None or (bool(self.trace) and self.concurrency is None)

    def _check_numbers(self) -> None:
        check_positive(self, "concurrency", "rate", "cv", "speedup", "requests", "prefixes", "prefix_tokens",
                       "length_scale", "repeats", "sweep_max")  # fmt: skip
        for name in ("warmup", "max_input", "max_output"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{dashed(name)} {getattr(self, name)}: accepted is 0 or more", param=dashed(name))
        if not 0 < self.attainment <= 1:
            raise ConfigError(f"--attainment {self.attainment}: accepted is above 0, to 1", param="--attainment")

    def _check_pairs(self) -> None:
        if self.concurrency is not None and self.rate is not None:
            raise ConfigError("--concurrency (closed loop) and --rate (open loop) exclude each other", param="--rate")
        if self.workload == "file" and not self.prompts:
            raise ConfigError("--workload file needs --prompts FILE", param="--prompts")
        if self.workload == "mixed" and not self.mix:
            raise ConfigError("--workload mixed needs --mix 'WEIGHT INPUT OUTPUT'", param="--mix")
        if self.trace and self.workload != "random":
            raise ConfigError("--trace brings its own prompts; leave --workload away", param="--workload")
        if self.sweep and self.open_loop and self.rate is None:
            raise ConfigError("--sweep with a trace needs --rate or --concurrency to vary", param="--sweep")
        if self.sweep and self.repeats > 1:
            raise ConfigError("--sweep and --repeats exclude each other", param="--repeats")
