"""Every setting, with the default that serves well unasked. One frozen dataclass per package.

The only module that reads the environment. Unknown keys are errors that name the nearest known one.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What runs and in how much memory. 0 and "auto" mean: found out at start and printed."""

    model: str = "smollm2:135m"  # a name of the store, or a path
    served_name: str = ""  # the name clients use; default: the model's own
    weights: str = "auto"  # auto | int8 | bf16
    isa: str = "auto"  # auto | a name of _native.variants()
    threads: int = 0
    kv_memory: int = 0  # bytes for the KV cache
    max_context: int = 0  # tokens a sequence may have; 0: what the model was trained for
    max_sequences: int = 32  # running at once
    chunk_tokens: int = 0  # most prefill tokens in one step; 0: calibrated at start
    prefix_cache: bool = True
    chat_template: str = ""  # a file that replaces the model's own template
    store: str = ""  # model store folder; default: $XDG_CACHE_HOME/tailrace


@dataclass(frozen=True, slots=True)
class ControlConfig:
    """Who may wait. Requests beyond these bounds are refused with 429 and a Retry-After."""

    max_waiting_requests: int = 256
    max_waiting_tokens: int = 262_144  # prompt tokens over all waiting requests
    drain_timeout: float = 30.0  # seconds that running requests get after SIGTERM


@dataclass(frozen=True, slots=True)
class ApiConfig:
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()  # sha256 hex of each accepted key; empty: no authentication
    max_body_bytes: int = 8 * 1024 * 1024
    max_choices: int = 16  # n
    max_logprobs: int = 20
    max_stop_strings: int = 16
    max_prompts: int = 64  # prompts in one completions request
    commit_after: float = 2.0  # seconds after which a waiting stream is answered with 200 and pings
    ping_interval: float = 10.0


@dataclass(frozen=True, slots=True)
class Config:
    engine: EngineConfig = field(default_factory=EngineConfig)
    control: ControlConfig = field(default_factory=ControlConfig)
    api: ApiConfig = field(default_factory=ApiConfig)
