"""Who may use the thread team next, where a process runs several engines: one of them at a time, a step each.

The engine that has had least time goes first, so that two that always have work share the machine evenly however long
their steps are. One that comes back from a rest begins where the others are: what it left unused is not saved up.
Knows no model and plans nothing. (Weighted fair queueing's virtual time; Demers, Keshav and Shenker, 1989.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace._native import Team


class Arbiter:
    """Any thread may call, of any member."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._members: list[Turns] = []
        self._holder: Turns | None = None
        self._waiting: list[Turns] = []
        self.given_up = False

    def join(self) -> Turns:
        """A place for one more engine."""
        member = Turns(self)
        with self._changed:
            member.used = max((other.used for other in self._members), default=0.0)
            self._members.append(member)
        return member

    def quit(self, member: Turns) -> None:
        with self._changed:
            self._members.remove(member)

    def give_up(self) -> None:
        """Whoever holds the team keeps it: nobody gets another turn."""
        with self._changed:
            self.given_up = True
            self._changed.notify_all()

    def streams_beside(self, member: Turns) -> bool:
        """Whether another engine is in the middle of answers, which each step of this one holds up."""
        return any(other.streams for other in self._members if other is not member)

    def enter(self, member: Turns) -> None:
        with self._changed:
            if not member.active:
                member.active = True
                active = [other.used for other in self._members if other.active and other is not member]
                member.used = max(member.used, min(active, default=member.used))
            self._waiting.append(member)
            self._changed.wait_for(lambda: self.given_up or (self._holder is None and self._first() is member))
            self._waiting.remove(member)
            if self.given_up:
                raise RuntimeError("another engine has kept the thread team")
            self._holder = member

    def leave(self, member: Turns, seconds: float) -> None:
        with self._changed:
            if self._holder is member:
                self._holder = None
                member.used += seconds
                self._changed.notify_all()

    def rest(self, member: Turns) -> None:
        with self._changed:
            member.active, member.streams = False, 0

    def _first(self) -> Turns:
        return min(self._waiting, key=lambda member: member.used)


class Turns:
    """One engine's way to the team. `used`: seconds that it has had, and those it was passed over; `streams`: rows of
    running answers in its last step."""

    def __init__(self, arbiter: Arbiter) -> None:
        self.used = 0.0
        self.active = False
        self.streams = 0
        self._arbiter = arbiter

    @property
    def streams_beside(self) -> bool:
        return self._arbiter.streams_beside(self)

    @property
    def given_up(self) -> bool:
        """There will be no other turn."""
        return self._arbiter.given_up

    def enter(self) -> None:
        """Returns when it is this engine's turn. `leave` must follow. Raises when there will be none."""
        self._arbiter.enter(self)

    def leave(self, seconds: float = 0.0) -> None:
        """The turn is over, and took so long. Again: nothing."""
        self._arbiter.leave(self, seconds)

    def rest(self) -> None:
        """It has nothing to do."""
        self._arbiter.rest(self)

    def quit(self) -> None:
        """The engine ends."""
        self._arbiter.quit(self)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """A turn for something small that is not charged."""
        self.enter()
        try:
            yield
        finally:
            self.leave()


@dataclass(frozen=True, slots=True)
class Beside:
    """What an engine shares with the others of its process: the team of threads (None: it is the first, and makes it),
    and the memory, among so many `models`. `anew`: the same with a team that nobody hangs in."""

    arbiter: Arbiter
    team: Team | None
    models: int
    anew: Callable[[], Beside]
