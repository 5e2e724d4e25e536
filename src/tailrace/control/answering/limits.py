"""What bounds requests for a model: its own and the server's bounds, narrowed to what a tenant and a key may."""

from __future__ import annotations

from dataclasses import replace

from tailrace.config import ApiConfig
from tailrace.control.keys import Principal
from tailrace.control.models import Loaded
from tailrace.control.tenants import Tenants
from tailrace.protocol.sampling import Limits

_ANY = 1 << 30  # a bound that no request reaches


class ModelLimits:
    def __init__(self, config: ApiConfig, tenants: Tenants) -> None:
        self._config = config
        self._tenants = tenants
        self._known: dict[str, tuple[Loaded | None, Limits]] = {}  # by model

    def configure(self, config: ApiConfig) -> None:
        """Other bounds from now on."""
        self._config = config
        self._known.clear()

    def of(self, principal: Principal, name: str, model: Loaded | None) -> Limits:
        """For requests to the model of this name; without a model, those that hold for any."""
        known = self._known.get(name)
        if known is None or known[0] is not model:
            known = self._known[name] = model, self._limits(name, model)
        limits = known[1]
        tenant, key = self._tenants[principal.tenant], self._tenants.key_limits(principal.tenant, principal.key)
        contexts = [limits.max_context, tenant.limits.max_context, key.max_context]
        outputs = [n for n in (tenant.limits.max_output, key.max_output) if n]
        if not (outputs or any(contexts[1:])):
            return limits
        return replace(limits, max_context=min(n for n in contexts if n), max_output=min(outputs, default=0))

    def _limits(self, name: str, model: Loaded | None) -> Limits:
        config, caps = self._config, None if model is None else model.backend.caps
        return Limits(
            models=(name,),
            max_context=_ANY if caps is None else caps.max_context,
            vocab_size=_ANY if caps is None or model is None else min(caps.vocab_size, model.tokenizer.vocab_size),
            max_choices=config.max_choices if caps is None else min(config.max_choices, caps.max_sequences),
            max_logprobs=config.max_logprobs,
            max_stop_strings=config.max_stop_strings,
            max_prompts=config.max_prompts,
        )
