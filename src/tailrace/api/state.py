"""What the HTTP side works with, handed in whole: no globals, so that a process may hold several apps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from starlette.requests import Request

from tailrace.clock import Clock, SystemClock
from tailrace.config import Config
from tailrace.control.keys import Principal
from tailrace.control.pipeline import Pipeline
from tailrace.control.responses import MemoryResponses, ResponseStore
from tailrace.observe.metrics import Metrics
from tailrace.observe.record import Records
from tailrace.protocol.ask import Template
from tailrace.protocol.sampling import Limits
from tailrace.text.parsers.dialect import Dialect
from tailrace.text.template import ChatTemplate
from tailrace.text.tokenizer import Tokenizer


@dataclass(slots=True)
class AppState:
    """`template` is None for a model without one. The model's names and bounds are the backend's capabilities."""

    config: Config
    pipeline: Pipeline
    tokenizer: Tokenizer
    template: Template | None
    metrics: Metrics
    clock: Clock = field(default_factory=SystemClock)
    limits: Limits = field(init=False)
    records: Records = field(default_factory=Records)
    responses: ResponseStore = field(init=False)
    dialect: Dialect = field(init=False)
    created: int = field(init=False)  # when the model was loaded, seconds since the epoch

    def __post_init__(self) -> None:
        caps, api = self.pipeline.backend.caps, self.config.api
        template = self.template if isinstance(self.template, ChatTemplate) else None
        engine = self.config.engine
        self.dialect = Dialect.of(
            template, self.tokenizer, tool_parser=engine.tool_parser, reasoning_parser=engine.reasoning_parser
        )
        self.responses = MemoryResponses(api.response_memory)
        self.created = int(self.clock.wall())
        self.limits = Limits(
            models=caps.models,
            max_context=caps.max_context,
            vocab_size=min(caps.vocab_size, self.tokenizer.vocab_size),
            max_choices=min(api.max_choices, caps.max_sequences),
            max_logprobs=api.max_logprobs,
            max_stop_strings=api.max_stop_strings,
            max_prompts=api.max_prompts,
        )

    def limits_of(self, principal: Principal) -> Limits:
        """The server's bounds, narrowed to what this tenant and key may."""
        tenants, limits = self.pipeline.tenants, self.limits
        tenant, key = tenants[principal.tenant], tenants.key_limits(principal)
        contexts = [limits.max_context, tenant.limits.max_context, key.max_context]
        outputs = [n for n in (tenant.limits.max_output, key.max_output) if n]
        if not (tenant.models or outputs or any(contexts[1:])):
            return limits
        models = tuple(name for name in limits.models if not tenant.models or name in tenant.models)
        context = min(n for n in contexts if n)
        return replace(limits, models=models, max_context=context, max_output=min(outputs, default=0))


def state_of(request: Request) -> AppState:
    state: AppState = request.scope["state"]["tailrace"]
    return state
