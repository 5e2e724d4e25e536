"""When a prompt that starts now has its first token: the engine's next steps, played with the cost model.

Each step's budget is divided as the engine does it; answers end when they are expected to, prompts become answers, and
more arrives at the rates of late. Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import inf

from tailrace.control.coming import Flow
from tailrace.control.estimate import prefill_seconds
from tailrace.engine.share import Want, divide, unweighed, weighed
from tailrace.types import Outlook, Prefill

_STEPS = 48  # played one by one; after them the prompt is taken to go on at its pace so far
_MOST_NEW = 16  # arrivals beside which no more are imagined

Prompt = tuple[Prefill, float]  # with tokens of its answer


class FirstToken:
    """Played when it is made. `seconds` until the first token, and what is there then: `ends`, the steps after which
    each of the others' answers will have ended; their `prompts`; `kv_tokens` that the others' rows read."""

    def __init__(
        self, outlook: Outlook, mine: Prefill, remaining: Sequence[float] = (), flows: Sequence[Flow] = ()
    ) -> None:
        """`remaining`: tokens that each running answer is expected to make yet, those of `outlook.prefills` the
        largest; answers that are not given go on. `flows`: what arrives meanwhile."""
        self.seconds = outlook.step_left
        self.kv_tokens = float(outlook.kv_tokens)
        self.ends: list[float] = []
        self._here: list[Prompt] = []
        self._away: list[Prefill] = []
        self._new: list[Prompt] = []
        if _one_step(mine, outlook):
            self._take_alone(mine, outlook, flows)
        else:
            self._take_among(mine, outlook, remaining, flows)

    @property
    def prompts(self) -> list[Prefill]:
        return [*(prompt for prompt, _ in (*self._here, *self._new)), *self._away]

    def _take_alone(self, mine: Prefill, outlook: Outlook, flows: Sequence[Flow]) -> None:
        """As `_take_among` would, in a tenth of its time."""
        costs = outlook.costs
        step = costs.step + costs.kv * outlook.kv_tokens + prefill_seconds(costs, mine.done, mine.todo)
        self.seconds += step
        self._flows = [(flow, 0.5 + flow.rate * step) for flow in flows]
        self._arrive()

    def _take_among(self, mine: Prefill, outlook: Outlook, remaining: Sequence[float], flows: Sequence[Flow]) -> None:
        there = self._outlook = _for(mine, outlook)
        self.kv_tokens = float(there.kv_tokens)
        ends = sorted(remaining)[: outlook.decodes]
        ends += [inf] * (outlook.decodes - len(ends))
        self.ends = ends[: there.decodes]
        heapify(self.ends)
        output = max(remaining, default=inf)
        self._here = [(prompt, output) for prompt in there.prefills]
        self._away = [prompt for prompt in outlook.prefills if prompt not in there.prefills]
        comes = [flow for flow in flows if there.prefills == outlook.prefills or not _sits_out(flow.prompt, outlook)]
        self._flows = [(flow, 0.5) for flow in comes]  # and the part of a request that has come of it
        self._steps = 0
        self._play(mine)
        self.ends += ends[there.decodes :]
        self.kv_tokens += outlook.kv_tokens - there.kv_tokens

    def _play(self, mine: Prefill) -> None:
        begun, given = self.seconds, 0
        while mine.todo and self._steps < _STEPS:
            grants = self._step(mine)
            given += sum(grants[: len(self._here) + 1])
            mine = _on(mine, grants[len(self._here)])
            self._pass(grants)
        if mine.todo:
            left = mine.todo + sum(min(prompt.todo, mine.todo) for prompt, _ in self._here)
            self.seconds += (self.seconds - begun) * left / max(given, 1)
        self.ends = [end - self._steps for end in self.ends if end > self._steps]

    def _step(self, mine: Prefill) -> list[int]:
        """One step's tokens of each prompt: what is here, `mine`, what came."""
        there, costs, rows = self._outlook, self._outlook.costs, len(self.ends)
        prompts = [*(prompt for prompt, _ in self._here), mine, *(prompt for prompt, _ in self._new)]
        grants = _grants(there.chunk if rows else there.idle_chunk, prompts, there.attention)
        attention = sum(grant * (p.done + grant / 2) for grant, p in zip(grants, prompts, strict=True))
        seconds = costs.step + costs.prefill * sum(grants) + costs.decode * rows + costs.kv * self.kv_tokens
        seconds += costs.attention * attention
        self.seconds += seconds
        self._steps += 1
        self._flows = [(flow, due + flow.rate * seconds) for flow, due in self._flows]
        return grants

    def _pass(self, grants: Sequence[int]) -> None:
        """The step is over: answers end, prompts become answers, more has come."""
        self.kv_tokens += len(self.ends)
        while self.ends and self.ends[0] <= self._steps:
            self.kv_tokens -= self.kv_tokens / len(self.ends)
            heappop(self.ends)
        count = len(self._here)
        self._here = self._moved(self._here, grants)
        self._new = self._moved(self._new, grants[count + 1 :])
        self._arrive()

    def _arrive(self) -> None:
        for place, (flow, due) in enumerate(self._flows):
            if due >= 1.0 and len(self._new) < _MOST_NEW:
                self._new += [(flow.prompt, flow.output)] * int(due)
                self._flows[place] = (flow, due % 1.0)

    def _moved(self, prompts: Sequence[Prompt], grants: Sequence[int]) -> list[Prompt]:
        """Those that go on; the others begin to answer."""
        going = []
        for (prompt, output), grant in zip(prompts, grants, strict=False):
            if grant < prompt.todo:
                going.append((_on(prompt, grant), output))
            else:
                heappush(self.ends, self._steps + output)
                self.kv_tokens += prompt.done + grant
        return going


def _one_step(mine: Prefill, outlook: Outlook) -> bool:
    """The most frequent case: nothing else is there, and one step does it."""
    if outlook.decodes or outlook.prefills or outlook.above or mine.step_share < 1.0:
        return False
    return weighed(mine.todo, mine.done, outlook.attention) <= outlook.idle_chunk


def _for(prompt: Prefill, outlook: Outlook) -> Outlook:
    """What the prompt will find where groups give way: their rows sit out for it, or it shares short steps."""
    if not outlook.above:
        return outlook
    if _sits_out(prompt, outlook) or prompt.step_share < 1.0:
        chunk, rows = outlook.short_chunk, min(outlook.short_rows, outlook.decodes)
        read = outlook.kv_tokens * rows // max(outlook.decodes, 1)
        return replace(outlook, chunk=chunk, idle_chunk=chunk, decodes=rows, kv_tokens=read)
    others = tuple(one for one in outlook.prefills if not _sits_out(one, outlook))
    return replace(outlook, prefills=others, decodes=0, kv_tokens=0)


def _sits_out(prompt: Prefill, outlook: Outlook) -> bool:
    return prompt.background or prompt.share_group in outlook.above


def _on(prompt: Prefill, grant: int) -> Prefill:
    return prompt._replace(todo=prompt.todo - grant, done=prompt.done + grant)


def _grants(budget: int, prompts: Sequence[Prefill], attention: float) -> list[int]:
    """Tokens of each prompt in the next step, as the scheduler gives them."""
    if len(prompts) == 1 and prompts[0].step_share >= 1.0:  # alone, as most are
        (alone,) = prompts
        fits = weighed(alone.todo, alone.done, attention) <= budget
        return [alone.todo if fits else min(unweighed(budget, alone.done, attention), alone.todo)]
    wants = [
        Want(weighed(p.todo, p.done, attention), p.share_group, p.weight, p.deadline, p.step_share, p.background)
        for p in prompts
    ]
    return [
        p.todo if grant >= want.tokens else min(unweighed(grant, p.done, attention), p.todo)
        for p, want, grant in zip(prompts, wants, divide(budget, wants), strict=True)
    ]
