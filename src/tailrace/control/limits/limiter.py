"""Holds on tenants' limits for requests on their way: taken at the door, waited for, kept alive, settled once.

Owns who waits for limits: one line for each tenant and key, first come first served, beside the queue for the machine.
The store (memory, Redis) owns the numbers. A caller without limits touches nothing here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from uuid import uuid4

from tailrace.control.limits.base import (
    BUDGETS,
    MICRO,
    NOTHING,
    Account,
    Amounts,
    Ask,
    Change,
    Kind,
    LimitStore,
    Outcome,
)
from tailrace.errors import Unavailable

log = logging.getLogger(__name__)

_LOOK = 0.1  # seconds between looks at counters that others change too
_LEAST_LOOK = 0.005
_TRY_AGAIN = 1.0  # seconds after which an unreachable store is tried again
_LAST_WORDS = 2.0  # seconds that a stop waits for the store
_SETTLE_EVERY = 10.0  # seconds
_NO_BOUND = 2**62
_GRANTED = Outcome(Kind.GRANTED)
_EXTENSION = 4  # what is made beyond a hold extends it by this part of it


class Hold:
    """What one request may still spend. Without accounts it holds nothing and every call is free.

    `spend` notes what was made so far; `settle` ends it, once, however often it is called.
    """

    __slots__ = (
        "_limiter",
        "accounts",
        "ask",
        "closed",
        "granted",
        "id",
        "known",
        "measure",
        "outcome",
        "room",
        "spent",
    )

    def __init__(self, limiter: Limiter, accounts: Sequence[Account], ask: Ask) -> None:
        self._limiter = limiter
        self.accounts = accounts
        self.ask = ask
        self.id = uuid4().hex if accounts else ""
        self.outcome = _GRANTED
        self.granted = True
        self.closed = not accounts
        self.spent = NOTHING
        self.known = NOTHING  # what the store has been told
        self.room = ask.learned.output_tokens if accounts else _NO_BOUND  # tokens that the hold covers
        self.measure: Callable[[], Amounts] | None = None  # what was made until now, looked up when it is renewed

    def spend(self, amounts: Amounts) -> None:
        """All that was made so far. Told at once when it exceeds what is held, which then grows; else in time."""
        self.spent = amounts
        if self.closed or amounts.output_tokens <= self.room:
            return
        more = max(self.room // _EXTENSION, 16) + amounts.output_tokens - self.room
        self.room += more
        self._limiter.tell(self, Amounts(output_tokens=more))

    def start(self, amounts: Amounts) -> None:
        """It has begun: what is known of its cost is spent from now on, not only held."""
        self.spent = amounts
        if not self.closed:
            self._limiter.tell(self, NOTHING)

    def settle(self, amounts: Amounts) -> None:
        if self.closed:
            return
        self.spent = amounts
        self.closed = True
        self._limiter.end(self)


class _Line:
    def __init__(self) -> None:
        self.waiting: deque[tuple[Hold, Callable[[], None], Callable[[], None]]] = deque()
        self.moved = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class Limiter:
    def __init__(self, store: LimitStore, *, admit_unchecked: bool = False) -> None:
        """`admit_unchecked`: while the store does not answer, requests are let in, and told to it when it does."""
        self.store = store
        self.admit_unchecked = admit_unchecked
        self._lines: dict[tuple[str, ...], _Line] = {}
        self._live: dict[str, Hold] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewing: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Requests that wait for limits."""
        return sum(not hold.closed for line in self._lines.values() for hold, *_ in line.waiting)

    async def reserve(self, accounts: Sequence[Account], ask: Ask) -> tuple[Hold, Outcome]:
        """OVER, EXHAUSTED and NEVER hold nothing (unless forced); PARTIAL has to `wait`. Raises Unavailable when the
        store does not answer, unless requests are let in unchecked then."""
        if not accounts:
            return Hold(self, accounts, ask), _GRANTED
        line = self._lines.get(_key(accounts))
        if line is not None and line.waiting and not ask.force:
            ask = Ask(ask.exact, ask.learned, line=True)
        hold = Hold(self, accounts, ask)
        outcome = hold.outcome = await self._reserved(hold)
        if outcome.kind >= Kind.OVER and not ask.force:
            hold.closed = True
            return hold, outcome
        hold.granted = ask.force or outcome.kind is Kind.GRANTED
        self._live[hold.id] = hold
        self._keep_renewing()
        return hold, outcome

    def wait(self, hold: Hold, granted: Callable[[], None], refused: Callable[[], None]) -> None:
        """Behind all others of its tenant and key. One of the two is called, once: when its turn has come and it fits,
        or when a budget has been spent meanwhile."""
        line = self._lines.setdefault(_key(hold.accounts), _Line())
        line.waiting.append((hold, granted, refused))
        if line.task is None:
            line.task = asyncio.create_task(self._serve(_key(hold.accounts), line))

    def tell(self, hold: Hold, extra: Amounts) -> None:
        """The store what was spent; `extra` is added to what is held."""
        change = Change(hold.spent, hold.known, extra)
        hold.known = hold.spent
        self._do(self._change(hold, change))

    def adopt(self, hold: Hold, accounts: Sequence[Account], spent: Amounts) -> None:
        """One that runs without accounts settles with these from now on. Of what it has `spent` until now only budgets
        count anything: no rate was asked for it."""
        hold.id, hold.accounts, hold.closed, hold.spent = uuid4().hex, accounts, False, spent
        hold.known = Amounts(*(0 if c in BUDGETS else amount for c, amount in enumerate(spent)))
        self._live[hold.id] = hold
        self._keep_renewing()
        self.tell(hold, NOTHING)

    def end(self, hold: Hold) -> None:
        self._live.pop(hold.id, None)
        self._do(self._settle(hold, Change(hold.spent, hold.known, done=True)))

    def poke(self) -> None:
        """Look at all lines now: limits were changed, or a test has moved the clock."""
        for line in self._lines.values():
            line.moved.set()

    async def close(self) -> None:
        """Tell the store what it has not been told yet; one that cannot be reached is not waited for: leases end."""
        waiting = [line.task for line in self._lines.values() if line.task is not None]
        for task in (*waiting, self._renewing):
            if task is not None:
                task.cancel()
        if self._tasks:
            _, unheard = await asyncio.wait(self._tasks, timeout=_LAST_WORDS)
            for task in unheard:
                log.error("limits: stopping with a change that the store was not told")
                task.cancel()
        await asyncio.gather(*waiting, *self._tasks, return_exceptions=True)
        await self.store.close()

    # --- inside

    async def _reserved(self, hold: Hold) -> Outcome:
        try:
            return await self.store.reserve(hold.id, hold.accounts, hold.ask)
        except Unavailable:
            if not self.admit_unchecked:
                raise
            return Outcome(Kind.GRANTED)

    async def _serve(self, key: tuple[str, ...], line: _Line) -> None:
        """Let the first of a line in when it fits, or tell it that it never will; then the next."""
        try:
            while line.waiting:
                hold, granted, refused = line.waiting[0]
                line.moved.clear()
                pause = 0.0 if hold.closed else await self._grow(hold)
                spent = pause is not None and hold.outcome.kind is Kind.EXHAUSTED
                if pause is not None and not (spent or hold.closed):
                    await _until(line.moved, pause)
                    continue
                line.waiting.popleft()
                if not hold.closed:
                    hold.granted = not spent
                    (refused if spent else granted)()
        finally:
            self._lines.pop(key, None)

    async def _grow(self, hold: Hold) -> float | None:
        """None when it has all it asked for; else seconds until another look."""
        try:
            outcome = await self.store.grow(hold.id, hold.accounts, hold.ask)
        except Unavailable:
            return None if self.admit_unchecked else _TRY_AGAIN
        if outcome.kind is Kind.GRANTED or hold.ask.force:
            return None
        hold.outcome = outcome
        wait = outcome.wait if outcome.wait is not None else float("inf")
        return max(min(wait, _LOOK if self.store.shared else wait), _LEAST_LOOK)

    async def _change(self, hold: Hold, change: Change) -> None:
        try:
            await self.store.change(hold.id, hold.accounts, change)
        except Unavailable as error:
            log.warning("limits: %s", error.__cause__ or error)  # the next change carries the whole sum again

    async def _settle(self, hold: Hold, change: Change) -> None:
        """Tried again until the lease would have ended anyway."""
        left = min(self.store.lease, 60.0)
        while True:
            try:
                await self.store.change(hold.id, hold.accounts, change)
                break
            except Unavailable as error:
                if left <= 0:
                    log.error("limits: a hold of %s could not be settled: %s", hold.accounts[0].name, error.__cause__)
                    break
            left -= _TRY_AGAIN
            await asyncio.sleep(_TRY_AGAIN)
        tenant = hold.accounts[0].name
        for key, line in self._lines.items():
            if key[0] == tenant:
                line.moved.set()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        """Now where the store is in memory and never suspends; in the background otherwise."""
        if not self.store.shared:
            _finish(work)
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _keep_renewing(self) -> None:
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        """Touch every live hold three times a lease, and have what it made since settled; until there is none."""
        while self._live:
            await asyncio.sleep(min(self.store.lease / 3, _SETTLE_EVERY))
            for hold in list(self._live.values()):
                if hold.closed:
                    continue
                if hold.measure is not None:
                    hold.spent = hold.measure()
                change = Change(hold.spent, hold.known)
                hold.known = hold.spent
                await self._change(hold, change)
        self._renewing = None


def device_us(seconds: float) -> int:
    return round(seconds * MICRO)


def _key(accounts: Sequence[Account]) -> tuple[str, ...]:
    return tuple(account.name for account in accounts)


def _finish(work: Coroutine[Any, Any, None]) -> None:
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("a store in memory must not suspend")


async def _until(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(None if seconds == float("inf") else seconds):
            await event.wait()
    except TimeoutError:
        pass
