"""How many may wait: of all, of each tenant, of each class. From settings and counts to what admission looks at."""

from __future__ import annotations

from math import ceil

from tailrace.config import ControlConfig
from tailrace.control.admission import UNBOUNDED, Standing
from tailrace.control.tenants import Tenants
from tailrace.control.waiting import ALL, Waiting, class_scope, tenant_scope
from tailrace.policy import RequestClass

_MOST_OF_ALL = 0.5  # of all places, that one of several tenants may take
_SHARES = {
    RequestClass.LONG: 0.75,
    RequestClass.BACKGROUND: 0.5,
}  # of all places, of classes without bounds of their own


class Bounds:
    """Each tenant has its weight's part of all places for itself, also while others fill the rest; beyond it, up to
    half of all while there are any free. So a burst finds room, and nobody can crowd another out."""

    def __init__(self, config: ControlConfig, tenants: Tenants, waiting: Waiting) -> None:
        self._config = config
        self._tenants = tenants
        self._waiting = waiting

    def free(self, tenant: str, requests: int, tokens: int) -> bool:
        """Whether so many more may wait, whatever is reserved for whom: the common case, asked twice of each request.
        False where `door` has to look."""
        everyone, mine = self._waiting.of(ALL), self._waiting.of(tenant_scope(tenant))
        most = self._most(tenant, self._tenants.waiting_share(tenant))
        return (
            everyone[0] + requests <= self._config.max_waiting_requests
            and everyone[1] + tokens <= self._config.max_waiting_tokens
            and mine[0] + requests <= most[0]
            and mine[1] + tokens <= most[1]
        )

    def door(self, tenant: str, own_requests: int = 0, own_tokens: int = 0) -> tuple[Standing, ...]:
        """`own_*`: what the asking request itself counts already."""
        share, own = self._tenants.waiting_share(tenant), (own_requests, own_tokens)
        all_requests, all_tokens = self._config.max_waiting_requests, self._config.max_waiting_tokens
        mine = self._standing(tenant_scope(tenant), own, self._most(tenant, share))
        if share < 1.0:  # of what is its own nobody else's waiting takes anything
            all_requests = UNBOUNDED if mine.requests < all_requests * share else all_requests
            all_tokens = UNBOUNDED if mine.tokens < all_tokens * share else all_tokens
        return self._standing(ALL, own, (all_requests, all_tokens)), mine

    def of_class(self, request_class: RequestClass) -> Standing:
        policy, share = self._tenants.policy.classes.of(request_class), _SHARES.get(request_class)
        requests, tokens = policy.max_waiting_requests, policy.max_waiting_tokens
        if share is not None:
            requests = requests or ceil(self._config.max_waiting_requests * share)
            tokens = tokens or ceil(self._config.max_waiting_tokens * share)
        most = (requests or UNBOUNDED, tokens or UNBOUNDED)
        return self._standing(class_scope(request_class), (0, 0), most, at_door=False)

    def _most(self, tenant: str, share: float) -> tuple[int, int]:
        policy, part = self._tenants[tenant], max(share, _MOST_OF_ALL)
        return (
            policy.max_waiting_requests or ceil(self._config.max_waiting_requests * part),
            policy.max_waiting_tokens or ceil(self._config.max_waiting_tokens * part),
        )

    def _standing(self, scope: str, own: tuple[int, int], most: tuple[int, int], *, at_door: bool = True) -> Standing:
        requests, tokens = self._waiting.of(scope)
        return Standing(scope, requests - own[0], tokens - own[1], *most, at_door=at_door)
