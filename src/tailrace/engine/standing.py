"""Which share groups have used more of the machine than their part, so that they give way to the others.

Every group that was here lately has a balance in seconds of the machine. It earns its part by weight of the time that
steps take, and all of the time in which there is nothing to do; the steps' time is paid by the groups whose rows they
had. Balances are bounded both ways: being away is worth a burst, not more, and a debt is forgotten soon.

A group in debt is *above* its part. Where one is, and others may come or are here, steps are short, so that whoever
comes does not wait long for the end of one; and while a short prompt of a group with savings is computed, rows of the
groups above sit out, a few steps in a row. Where nobody is above, or only one group comes at all, nothing changes.
Owns balances and that decision; knows no rows' order and no tenant.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from math import inf
from typing import NamedTuple, Protocol

from tailrace.engine.sequence import Sequence
from tailrace.engine.step import Row
from tailrace.types import GenerateRequest

_LATELY = 300.0  # seconds for which a group that left may come again
_MOST = 4.0  # seconds that a balance is worth, saved or owed
_MOST_LONG = 1.0  # saved by long prompts, which delay others soon after they begin
_SAVED = 0.25  # what a group must have saved for others to sit out
_SITS_OUT = 1.0  # seconds in a row
_FOLLOW = 0.2  # of the mean of a group's prompts


class Prices(Protocol):
    """What rows cost, in prefill tokens without context."""

    @property
    def attention(self) -> float: ...
    def row_tokens(self, kv_tokens: int) -> float:
        """Prefill tokens that a decode row takes as long as which reads that many KV tokens."""
        ...


class Turn(NamedTuple):
    """How the next step is made. `above`: groups in debt, empty where nobody has to give way. They sit out, or, where
    they do not, the step is short."""

    above: frozenset[int] = frozenset()
    sit_out: bool = False

    @property
    def short(self) -> bool:
        return bool(self.above) and not self.sit_out


_PLAIN = Turn()


class _Account:
    __slots__ = ("balance", "most", "prompt", "seen", "weight")

    def __init__(self, weight: float, now: float, most: float) -> None:
        self.most = most  # that it can save
        self.balance = most / 2
        self.weight = weight
        self.seen = now
        self.prompt = 0.0  # mean tokens to compute

    def move(self, seconds: float) -> None:
        self.balance = min(max(self.balance + seconds, -_MOST), self.most)


class Standings:
    def __init__(self) -> None:
        self._accounts: dict[int, _Account] = {}
        self._settled = 0.0  # time up to which balances are right
        self._in_a_row = 0.0  # seconds that groups sat out

    def came(self, request: GenerateRequest, tokens: int, now: float) -> None:
        """A request starts with so many tokens to compute. Those that nobody waits for do not count."""
        if request.background:
            return
        account = self._accounts.get(request.share_group)
        if account is None:
            most = _MOST if request.step_share >= 1.0 else _MOST_LONG
            self._accounts = {g: known for g, known in self._accounts.items() if now - known.seen <= _LATELY}
            account = self._accounts[request.share_group] = _Account(request.weight, now, most)
        account.seen, account.weight = now, request.weight
        account.prompt += (tokens - account.prompt) * (_FOLLOW if account.prompt else 1.0)

    def turn(self, running: Iterable[Sequence], now: float) -> Turn:
        """Of the step that is planned now."""
        accounts = self._accounts
        self._rested(now)
        if len(accounts) < 2:
            return _PLAIN
        here = accounts.keys() & {one.group.request.share_group for one in running}
        for group in here:
            accounts[group].seen = now
        above = frozenset(group for group in here if accounts[group].balance < 0.0)
        if not above:
            return _PLAIN
        return Turn(above, self._in_a_row < _SITS_OUT and any(map(self._goes_first, running)))

    def worked(self, rows: Seq[Row], turn: Turn, prices: Prices, now: float) -> None:
        """A step that was planned with `turn` has ended."""
        seconds = max(now - self._settled, 0.0)
        self._in_a_row = self._in_a_row + seconds if turn.sit_out else 0.0
        self._settled = max(now, self._settled)
        if len(self._accounts) < 2:
            for account in self._accounts.values():
                account.move(-seconds / 2)  # as beside one like it, so that who comes next need not wait for that
            return
        parts = _parts(rows, prices)
        total = sum(parts.values()) or 1.0
        weights = sum(account.weight for account in self._accounts.values())
        for group, account in self._accounts.items():
            account.move(seconds * (account.weight / weights - parts.get(group, 0.0) / total))

    def debt(self, group: int) -> float:
        """Seconds; 0 for who is within its part."""
        account = self._accounts.get(group)
        return 0.0 if account is None else max(-account.balance, 0.0)

    @property
    def shortest(self) -> float:
        """Mean prompt tokens of the group with the shortest, of those that need not give way. From any thread."""
        return min((one.prompt for one in tuple(self._accounts.values()) if one.balance >= 0.0), default=inf)

    def _goes_first(self, sequence: Sequence) -> bool:
        """A short prompt that is computed, of a group with savings."""
        request = sequence.group.request
        if sequence.generated or request.background or request.step_share < 1.0:
            return False
        account = self._accounts.get(request.share_group)
        return account is not None and account.balance >= _SAVED

    def _rested(self, now: float) -> None:
        """Nothing was computed since."""
        seconds = now - self._settled
        if seconds > 0.0:
            self._settled = now
            for account in self._accounts.values():
                account.move(seconds)


def _parts(rows: Seq[Row], prices: Prices) -> dict[int, float]:
    """What each group has of a step."""
    attention, parts = prices.attention, dict[int, float]()
    for sequence, first, size, *_ in rows:
        if first + 1 == sequence.known:
            tokens = size * prices.row_tokens(first)
        else:
            tokens = size * (1.0 + attention * (first + size / 2))
        group = sequence.group.request.share_group
        parts[group] = parts.get(group, 0.0) + tokens
    return parts
