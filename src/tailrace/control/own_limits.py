"""A tenant's own limits on the way of a request: from quotas to accounts, from outcomes to waiting or refusing.

Owns the requests that wait for limits. The counters live in `limits`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tailrace.clock import Clock
from tailrace.control.expiry import Expiry
from tailrace.control.intake import Prepared
from tailrace.control.keys import Principal
from tailrace.control.limits.base import NOTHING, Account, Amounts, Ask, Kind, LimitStore, Outcome, caps
from tailrace.control.limits.limiter import Hold, Limiter, device_us
from tailrace.control.limits.refusal import limit_name, limit_refusal
from tailrace.control.limits.standing import MONEY, standing
from tailrace.control.prices import Counts, cost
from tailrace.control.tenants import Tenants
from tailrace.errors import TailraceError
from tailrace.observe.metrics import Metrics
from tailrace.observe.timeline import Phase, Timeline
from tailrace.policy import Quota, TenantPolicy

if TYPE_CHECKING:
    from tailrace.control.run import Run


class OwnLimits:
    def __init__(
        self, tenants: Tenants, store: LimitStore, clock: Clock, metrics: Metrics, *, admit_unchecked: bool = False
    ) -> None:
        self.limiter = Limiter(store, admit_unchecked=admit_unchecked)
        self._tenants = tenants
        self._clock = clock
        self._metrics = metrics
        self._caps: dict[Quota, Amounts] = {}
        self._known: dict[tuple[str, str], tuple[TenantPolicy, tuple[Account, ...]]] = {}  # of each tenant and key
        self._waiting: dict[str, Run] = {}
        self._expiry = Expiry(clock, self._expired)

    @property
    def waiting(self) -> list[Run]:
        return list(self._waiting.values())

    def accounts(self, principal: Principal) -> tuple[Account, ...]:
        """Those that have any limit: the tenant's, and the key's own."""
        name = principal.tenant
        policy, known = self._tenants[name], self._known.get((name, principal.key))
        if known is not None and known[0] is policy:
            return known[1]
        both = (
            Account(name, self._of(self._tenants[name].limits)),
            Account(f"{name}/{principal.key}", self._of(self._tenants.key_limits(name, principal.key))),
        )
        limited = tuple(account for account in both if any(account.caps))
        # The tenant's account comes first also when it has no limit: it names the line, and the place in Redis.
        accounts = both if limited == both[1:] else limited
        self._known[name, principal.key] = (policy, accounts)
        return accounts

    async def reserve(self, prepared: Sequence[Prepared], principal: Principal, timeline: Timeline) -> list[Hold]:
        """A hold for each request, all or none. Raises RateLimited, BudgetExhausted, InvalidRequest, Unavailable."""
        accounts = self.accounts(principal)
        if not accounts:
            exact = [Amounts(int(not number), len(each.request.prompt)) for number, each in enumerate(prepared)]
            return [(await self.limiter.reserve((), Ask(one, NOTHING)))[0] for one in exact]
        holds: list[Hold] = []
        try:
            for number, each in enumerate(prepared):
                hold, outcome = await self.limiter.reserve(accounts, self._ask(each, principal.tenant, number == 0))
                holds.append(hold)
                self._judge(outcome, hold, timeline)
        except BaseException:
            self.release(holds)
            raise
        return holds

    def release(self, holds: Iterable[Hold]) -> None:
        """Nothing came of them."""
        for hold in holds:
            hold.settle(NOTHING)

    def wait(self, run: Run, until: float | None, granted: Callable[[], None]) -> None:
        """Until its limits have room for it, at most until that time on the clock."""
        self._waiting[run.id] = run
        if until is not None:
            self._expiry.add(run.id, until)

        def turn() -> None:
            self.forget(run)
            granted()

        def spent() -> None:
            self._metrics.rejected(limit_name(run.hold.outcome))
            run.fail(self._refusal(run.hold.outcome))

        self.limiter.wait(run.hold, turn, spent)

    def forget(self, run: Run) -> None:
        """It waits no more, for whatever reason."""
        if self._waiting.pop(run.id, None) is not None:
            self._expiry.drop(run.id)

    async def standing(self, principal: Principal) -> list[dict[str, Any]]:
        """How the limits of a tenant and of its key stand. Raises Unavailable."""
        accounts = self.accounts(principal)
        return await standing(self.limiter.store, accounts, self.currency, self._clock.wall())

    async def budgets(self) -> list[dict[str, Any]]:
        """How the budgets of money of all tenants stand. Raises Unavailable."""
        accounts = [Account(tenant.name, self._of(tenant.limits)) for tenant in self._tenants]
        return await standing(self.limiter.store, accounts, self.currency, self._clock.wall(), MONEY)

    @property
    def currency(self) -> str:
        return self._tenants.policy.prices.currency

    def changed(self, tenant: str) -> None:
        """Who waits for limits of this tenant does so for its present ones from now on."""
        sequences = self._of(self._tenants[tenant].limits).sequences
        force = self._tenants[tenant].mode == "shadow"
        for run in self.waiting:
            if run.ticket.tenant != tenant:
                continue
            hold = run.hold
            hold.accounts = self._present(run)
            hold.ask = replace(hold.ask, force=force)
            want = hold.ask.learned.sequences
            if not force and 0 < sequences < want:  # it would stand in everybody's way until its time is over
                run.fail(self._refusal(Outcome(Kind.NEVER, "sequences", tenant, None, want, sequences)))
        self.limiter.poke()

    def settle_anew(self, runs: Iterable[Run]) -> None:
        """These run: they settle with the present limits. A budget that is new has what they have spent already."""
        for run in runs:
            hold = run.hold
            if hold.accounts:
                hold.accounts = self._present(run)
            elif accounts := self.accounts(Principal(run.tenant, run.ticket.key, frozenset())):
                self.limiter.adopt(hold, accounts, run.spent())

    async def close(self) -> None:
        await self.limiter.close()

    # --- inside

    def _present(self, run: Run) -> tuple[Account, ...]:
        """The accounts of its hold, with the limits that they have now."""
        of_tenant = self._of(self._tenants[run.tenant].limits)
        of_key = self._of(self._tenants.key_limits(run.tenant, run.ticket.key))
        return tuple(Account(a.name, of_tenant if a.name == run.tenant else of_key) for a in run.hold.accounts)

    def _of(self, quota: Quota) -> Amounts:
        found = self._caps.get(quota)
        if found is None:
            found = self._caps[quota] = caps(quota)
        return found

    def _ask(self, each: Prepared, tenant: str, first: bool) -> Ask:
        """`n = 4` is one request and four sequences; several prompts of one HTTP request are one request."""
        expected = each.ticket.estimate
        output = round(expected.output_q80 * expected.sequences)
        device = device_us(expected.seconds)
        counts = Counts(device, expected.uncached_tokens, expected.prompt_tokens - expected.uncached_tokens, output)
        money = cost(each.price, counts)
        learned = Amounts(0, 0, output, device, expected.sequences, device, money, money)
        exact = Amounts(int(first), expected.prompt_tokens)
        return Ask(exact, learned, force=self._tenants[tenant].mode == "shadow")

    def _judge(self, outcome: Outcome, hold: Hold, timeline: Timeline) -> None:
        if outcome.kind is Kind.GRANTED:
            return
        name = limit_name(outcome)
        said = {"limit": name, "scope": outcome.account, "outcome": outcome.kind.name.lower()}
        timeline.facts["limit"] = {**said, "enforced": not hold.ask.force}
        if hold.ask.force:
            self._metrics.shadowed(name)
        elif outcome.kind is Kind.PARTIAL:
            timeline.enter(Phase.LIMIT)
            self._metrics.limited(name)
        else:
            self._metrics.rejected(name)
            raise self._refusal(outcome)

    def _expired(self, name: str) -> None:
        run = self._waiting[name]
        outcome = run.hold.outcome
        self._metrics.rejected(limit_name(outcome) or "limit")
        run.fail(self._refusal(outcome, outcome.wait if outcome.wait is not None else 1.0))

    def _refusal(self, outcome: Outcome, retry_after: float | None = None) -> TailraceError:
        """`retry_after`: instead of the outcome's own wait."""
        wait = outcome.wait if retry_after is None else retry_after
        return limit_refusal(outcome, wait, self.currency, self._clock.wall())
