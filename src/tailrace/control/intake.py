"""From requests and who sends them to tickets: class, band, estimate, deadline. Lets nobody in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tailrace.clock import Clock
from tailrace.config import ControlConfig
from tailrace.control.classes import Kind, Rules, Subject, band, classify
from tailrace.control.estimate import Estimate, Estimator
from tailrace.control.keys import Principal
from tailrace.control.lengths import AnswerKind
from tailrace.control.tenants import ANONYMOUS, Tenants
from tailrace.control.ticket import Ticket
from tailrace.errors import Domain, Forbidden
from tailrace.frozen import frozen
from tailrace.policy import Price, RequestClass
from tailrace.types import GenerateRequest, Traits
from tailrace.units import length_bucket

_PLAIN = Traits()


@frozen
class Caller:
    """Who sends a request, what it says of itself, and in how many seconds from the socket it wants the first token."""

    principal: Principal = ANONYMOUS
    traits: Traits = _PLAIN
    ttft: float | None = None


@frozen
class Prepared:
    """A request ready for a decision. `because`: why it has its class; `price`: of its model."""

    request: GenerateRequest
    ticket: Ticket
    kind: AnswerKind
    because: str
    price: Price


class Intake:
    def __init__(self, tenants: Tenants, config: ControlConfig, clock: Clock) -> None:
        self._tenants = tenants
        self._clock = clock
        self._groups: dict[tuple[str, RequestClass], int] = {}
        self.configure(config)

    def configure(self, config: ControlConfig) -> None:
        """These bounds, and the tenants' present rules."""
        self._rules = Rules(config.long_prompt, config.long_output, self._tenants.policy.rules)

    def prepare(
        self, requests: Sequence[GenerateRequest], caller: Caller, opened: float, estimator: Estimator
    ) -> list[Prepared]:
        """`opened`: when the socket delivered them, on the clock; `estimator`: of the backend that is to serve them.
        Raises Forbidden for a class that is not allowed."""
        salt = self._tenants.salt(caller.principal.tenant)
        return [self._one(_salted(request, salt), caller, opened, estimator) for request in requests]

    def _one(self, request: GenerateRequest, caller: Caller, opened: float, estimator: Estimator) -> Prepared:
        name = caller.principal.tenant
        answers = AnswerKind(name, caller.traits.route, request.model)
        expected = estimator.estimate(request, answers)
        kind = self._allowed(name, self._classify(request, caller, expected))
        tenant = self._tenants[name]
        ticket = Ticket(
            tenant=name,
            key=caller.principal.key,
            weight=tenant.weight,
            band=band(kind.request_class, caller.traits, self._tenants.ceiling(name)),
            request_class=kind.request_class,
            bucket=length_bucket(expected.prompt_tokens),
            arrival=self._clock.now(),
            deadline=self._deadline(kind.request_class, caller.ttft, opened),
            share_group=self._groups.setdefault((name, kind.request_class), len(self._groups)),
            estimate=expected,
        )
        price = self._tenants.policy.prices.of(request.model, request.base_model)
        return Prepared(request, ticket, answers, kind.reason, price)

    def _classify(self, request: GenerateRequest, caller: Caller, expected: Estimate) -> Kind:
        principal = caller.principal
        subject = Subject(
            caller.traits,
            expected.uncached_tokens,
            expected.output_mean,
            principal.tenant,
            principal.key,
            request.model,
        )
        return classify(subject, self._rules)

    def _allowed(self, tenant: str, kind: Kind) -> Kind:
        """A class that the tenant may not use becomes background, if it may use that."""
        allowed = self._tenants[tenant].classes
        if not allowed or kind.request_class in allowed:
            return kind
        if RequestClass.BACKGROUND in allowed:
            return Kind(RequestClass.BACKGROUND, "class_not_allowed")
        raise Forbidden(
            f"This key may not send requests of class {kind.request_class}, which this one is ({kind.reason}); "
            f"allowed: {', '.join(allowed)}",
            code="class_not_allowed",
            domain=Domain.ADMISSION,
        )

    def _deadline(self, request_class: RequestClass, ttft: float | None, opened: float) -> float | None:
        """Of the first token: the caller's word, or what its class promises."""
        wanted = ttft if ttft is not None else self._tenants.policy.classes.of(request_class).ttft or None
        return None if wanted is None else opened + wanted


def _salted(request: GenerateRequest, tenant: bytes) -> GenerateRequest:
    """The request's own salt counts within its tenant's. Names hold no NUL, so no two pairs look alike."""
    salt = b"\0" + tenant + b"\0" + request.salt if request.salt else tenant
    return request if salt == request.salt else replace(request, salt=salt)
