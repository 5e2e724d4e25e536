"""Shared nouns of the request path. Imports nothing of tailrace but how they are made and counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tailrace.figures.buckets import StepTally
from tailrace.frozen import frozen

Tokens = npt.NDArray[np.int32]  # one-dimensional
Vector = npt.NDArray[np.float32]  # one-dimensional


class FinishReason(StrEnum):
    STOP = "stop"  # end-of-turn token, a stop string or a stop token id
    LENGTH = "length"  # max_tokens or the context is used up
    ABORT = "abort"  # the client left, or the server is going down
    ERROR = "error"  # this request's own processing failed


@frozen
class Traits:
    """What a request says of itself besides its size. Texts are the caller's own words; empty where it said nothing.

    `priority` is the caller's wish: below 0 sooner than others, above 0 later. `task` is its own label for what this is
    a part of.
    """

    route: str = ""  # chat, completions, embeddings, ...
    origin: str = "http"  # where it came in: http, or job
    service_tier: str = ""
    priority: int = 0
    tools: bool = False  # tools on offer, or tool results in the conversation
    attachments: int = 0  # parts that are no text
    task: str = ""


@frozen
class SamplingParams:
    """How tokens are chosen. Validated at the door (protocol); the engine trusts it.

    `top_k` 0 means off. `seed` None means the server draws one per request. `logprobs` is the number of
    alternatives wanted per token (0 = only the chosen token's), None = no log-probabilities at all.
    Presence and frequency penalties count generated tokens; repetition also counts the prompt's.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    logprobs: int | None = None
    allowed_token_ids: tuple[int, ...] = ()  # empty: all
    bad_words: tuple[tuple[int, ...], ...] = ()  # the last token of none of them comes behind the others


@frozen
class StopConditions:
    """When a choice ends. `max_tokens` is already clamped to what the context leaves."""

    max_tokens: int
    min_tokens: int = 0
    strings: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()  # asked for by the caller, besides the model's own end tokens
    ignore_eos: bool = False
    include_stop_string: bool = False


class GrammarKind(StrEnum):
    JSON_SCHEMA = "json_schema"  # JSON text of a schema
    REGEX = "regex"
    LARK = "lark"  # llguidance's dialect; `%json {...}` in it is a schema


@frozen
class Grammar:
    """What the whole text of each choice must be, from its first character to its last. Made by protocol/structured.

    `field` names what of the request asked for it, for errors; the same source under another name is the same grammar.
    """

    kind: GrammarKind
    source: str
    field: str = "grammar"


@frozen
class Thinking:
    """What each choice thinks before it answers, between two marks. A grammar holds behind them. `inside`: the prompt
    ends within. After `budget` tokens of thoughts the end mark is forced; None: the model ends them."""

    begin: str
    end: str
    inside: bool = False
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class Adapter:
    """What is added to a model's weights for some requests. `key` is of this loading alone, and what was computed with
    it is cached under it. `weights` are the backend's own, and given back with the last reference."""

    name: str
    key: bytes  # KEY_BYTES long
    weights: object
    base: str = ""  # name of the model


KEY_BYTES = 8
_ADAPTED = b"\1"  # what the prefix cache's keys begin with where there is an adapter


class Pooling(StrEnum):
    """How the hidden states of a prompt's tokens become one vector."""

    MEAN = "mean"
    FIRST = "first"  # of the token in front, where everything sees everything ("cls")
    LAST = "last"


@frozen
class BeamSearch:
    """The choices are the `n` most likely answers that a search with `n` beams finds, best first: ranked by the sum of
    log-probabilities / tokens ** length_penalty. `early_stopping`: True ends the search when there are `n`, False when
    no beam as it is now is better than the worst of them, None when none can become so."""

    length_penalty: float = 1.0
    early_stopping: bool | None = False


@frozen
class GenerateRequest:
    """One request as every backend sees it: `n` choices over one prompt.

    `echo` puts the prompt's text in front of the answer (text completions); with `prompt_logprobs` set its
    tokens' log-probabilities are computed too, which recomputes the prompt (no prefix hit).
    """

    id: str
    model: str
    prompt: Tokens
    sampling: SamplingParams
    stop: StopConditions
    n: int = 1
    echo: bool = False
    prompt_logprobs: int | None = None
    salt: bytes = b""  # prefix-cache isolation
    priority: int = 0  # higher goes first
    share_group: int = 0  # opaque to the engine
    weight: float = 1.0
    deadline: float | None = None  # on the injected clock: who is due earlier is computed first in its group
    background: bool = False  # gives way within a step, also while it decodes
    step_share: float = 1.0  # most of a step's prefill budget that its prompt may take
    grammar: Grammar | None = None
    thinking: Thinking | None = None
    shown_ids: tuple[int, ...] = ()  # control tokens whose names are part of the answer's text
    beams: BeamSearch | None = None  # else the choices are sampled
    adapter: Adapter | None = None
    pooling: Pooling | None = None  # the answer is one vector and no token; `stop.max_tokens` is 0 then, and `n` 1

    @property
    def base_model(self) -> str:
        """Name of the model that computes it; `model` is the adapter's where there is one."""
        return self.model if self.adapter is None else self.adapter.base

    @property
    def cache_key(self) -> bytes:
        """Under which its prompt's KV blocks are found again: what they hold hangs on the adapter too."""
        if self.adapter is not None:
            return _ADAPTED + self.adapter.key + self.salt
        return _ADAPTED + bytes(KEY_BYTES) + self.salt if self.salt.startswith(_ADAPTED) else self.salt


@frozen
class TokenLogprob:
    """One token and its log-probability under the model (before temperature and filters).

    `data` is the token's own bytes, so that a client can join them whatever characters they cut.
    `top` holds the asked-for alternatives, best first, as (token id, bytes, logprob).
    """

    token_id: int
    data: bytes
    logprob: float | None  # None for the first token of a prompt
    top: tuple[tuple[int, bytes, float], ...] = ()


@frozen
class EngineFacts:
    """What happened to a choice inside a backend, for the request's Timeline. Times are on the injected clock.

    Waiting in the backend lasted until `started`, prefill until `first_token`, decode until `finished`. `started`
    is None for a choice that ended before its first step, `first_token` for one that ended without a token.
    `computed_prompt_tokens`, `cached_tokens` and the device seconds belong to the request: the last choice's say all;
    `recomputed_tokens` is work lost to preemption, which is the system's cost. So is that of guesses that were computed
    and rejected: of this choice's `drafted_tokens`, `accepted_tokens` were right. `kv_blocks` is what the request had
    when it had most, what its choices share counted once.
    """

    finished: float
    started: float | None = None
    first_token: float | None = None
    cached_tokens: int = 0
    computed_prompt_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    standard_seconds: float | None = None  # device time by frozen costs; None where the backend keeps no such account
    measured_seconds: float | None = None  # its part of what the steps took
    kv_blocks: int = 0


@dataclass(slots=True)
class TokenEvent:
    """What happened to one choice since its last event. The last one has `finish` set; exactly one does.

    `text` is what may be shown now: it never ends inside a character nor inside a possible stop string,
    so joining the texts of a choice gives the plain answer exactly. `token_ids` counts tokens, not texts.
    """

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop token id or string that ended it
    error: Exception | None = None  # with finish == ERROR
    cached_tokens: int | None = None  # on a choice's first event: prompt tokens found in the prefix cache
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None  # on choice 0's first event, when asked for
    facts: EngineFacts | None = None  # on a choice's last event, from backends that know them
    embedding: Vector | None = None  # on the last event of a request with `pooling`; as pooled, not normalized


@frozen
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class StepCosts(NamedTuple):
    """Seconds that an engine step takes: `step` for itself, and more for each prefill token, decode row, KV token that
    a decode row reads, and unit of prefill attention (chunk * (context before it + chunk / 2))."""

    step: float = 2e-3
    prefill: float = 1e-3
    decode: float = 2e-3
    kv: float = 1e-7
    attention: float = 1e-8


@frozen
class Formats:
    """How a model's numbers are kept: int8, bf16, ...; several with a plus, the largest part first. Empty where that is
    not known."""

    weights: str = ""
    kv: str = ""


@frozen
class Capabilities:
    """What a backend can do. `models` are the names it answers to."""

    models: tuple[str, ...]
    max_context: int
    vocab_size: int
    max_sequences: int  # choices it runs at once
    features: frozenset[str] = frozenset()
    block_tokens: int = 64  # tokens in a KV block
    costs: StepCosts = field(default_factory=StepCosts)  # standard: calibrated once, then frozen
    generates: bool = True  # text; False: vectors only
    embedding: int = 0  # numbers in a vector; 0: it makes none
    pooling: Pooling = Pooling.MEAN  # what its vectors are made for
    formats: Formats = field(default_factory=Formats)


@frozen
class LoadReport:
    """How busy a backend is; cheap to make, a moment old at most."""

    running: int = 0  # sequences in prefill or decode
    waiting: int = 0  # sequences accepted and not started (or preempted)
    prompt_tokens_waiting: int = 0
    kv_blocks_free: int = 0  # includes cached blocks that can be evicted
    kv_blocks_total: int = 0
    step_seconds: float = 0.0  # the last steps' typical time
    step_error: float = 0.0  # how far the last steps were from their predicted time, as a part of it
    free_slots: int = 0  # sequences that could start now, those accepted already taken off
    free_blocks: int | None = None  # KV blocks for new prompts: less those of accepted ones, and one for each running
    # sequence to grow into; None where KV memory is not known
    prefill_markup: float = 1.0  # what prefill is charged over its own terms: its part of the steps' constant
    decode_markup: float = 1.0
    busy_seconds: float = 0.0  # in steps, since the start
    overhead_seconds: float = 0.0  # of those, what no request pays: recomputation, rejected drafts, failed steps
    computed_tokens: int = 0  # since the start, prefill and decode
    recomputed_tokens: int = 0  # of those, again after a preemption
    aborts: int = 0  # since the start
    abort_seconds: float = 0.0  # sum over them, from asking to slots and blocks being free
    drafted_tokens: int = 0  # guesses computed since the start, of choices that ended
    accepted_tokens: int = 0  # of those


class Prefill(NamedTuple):
    """A prompt that a backend is computing: tokens still to do, those before them, whose share it takes, and until when
    its first token is wanted."""

    todo: int
    done: int = 0
    share_group: int = 0
    weight: float = 1.0
    step_share: float = 1.0
    background: bool = False
    deadline: float = inf


@frozen
class Outlook:
    """What a backend is in the middle of, for predictions. Counts are as they will be when the step that runs ends.

    `costs` are as learned, `chunk` prefill tokens fit a step beside these decode rows, `idle_chunk` beside none; both
    are tokens without context, of which a unit of attention work takes `attention`. The share groups `above` give way
    to short prompts of others; else steps are short while they are there, of `short_chunk` tokens and `short_rows`.
    """

    step_left: float = 0.0  # seconds until the step that runs now will end
    prefills: tuple[Prefill, ...] = ()
    decodes: int = 0
    kv_tokens: int = 0  # read by those decode rows
    costs: StepCosts = field(default_factory=StepCosts)
    chunk: int = 512
    idle_chunk: int = 512
    attention: float = 0.0
    above: frozenset[int] = frozenset()
    short_chunk: int = 512
    short_rows: int = 0


@frozen
class Accelerator:
    """A device as the backend behind it publishes it. `busy` is a part of 1, memory in bytes."""

    name: str
    busy: float = 0.0
    memory_used: int = 0
    memory_total: int = 0


@frozen
class Inspection:
    """What people want to see of a backend, once a second at most. Errors are parts of the prediction."""

    kv_free: int = 0  # blocks
    kv_cached: int = 0  # unreferenced, and can be evicted
    kv_referenced: int = 0
    steps: int = 0  # since the start
    step_error_p50: float = 0.0  # of |measured - predicted| / predicted step time, recently
    step_error_p90: float = 0.0
    kv_evicted: int = 0  # blocks since the start that were given up for others
    failed_steps: int = 0  # since the start
    standard_seconds: float = 0.0  # of all rows since the start, by frozen costs
    tally: StepTally = field(default_factory=StepTally)
    accelerators: tuple[Accelerator, ...] = ()  # none where the backend publishes nothing about them


@frozen
class Pulse:
    """Whether what a backend has to do goes on."""

    beats: int = 0  # moves with all that it does
    busy: bool = False  # there is something to do
    expected: float = 0.0  # seconds that what it does now should take
    fault: str = ""  # why it will do no more, machine-readable


@frozen
class Health:
    ok: bool
    reason: str = ""
    detail: dict[str, float | int | str] = field(default_factory=dict)
