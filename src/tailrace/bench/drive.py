"""Sends talks in a closed loop (so many at any time) or an open one (at their times, whatever the server does)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Protocol

from tailrace.bench.client import Ask
from tailrace.bench.pace import Pace
from tailrace.bench.record import Record
from tailrace.bench.workload import Message, Prompt, Talk
from tailrace.frozen import frozen

Done = Callable[[Record, str], None]


class Sender(Protocol):
    async def send(self, ask: Ask) -> tuple[Record, str]: ...


@frozen
class Limits:
    """`requests`: turns to send in all. `until`: nothing is sent from then on. None: no such bound."""

    requests: int | None = None
    until: float | None = None
    think: float = 0.0  # seconds between an answer and the next turn


class Driver:
    """One run. What was answered is given to `done` with its text, in the order of answers."""

    def __init__(self, sender: Sender, pace: Pace, limits: Limits, done: Done, *, chat: bool) -> None:
        self._sender, self._pace, self._limits, self._done = sender, pace, limits, done
        self._chat = chat
        self._promised = 0  # requests that belong to talks already taken
        self._sent = 0

    async def closed(self, talks: Iterator[Talk], concurrency: int) -> None:
        """Each of `concurrency` workers plays one talk after the other."""

        async def work() -> None:
            while not self._late() and (talk := self._next(talks)) is not None:
                await self._play(talk, None)

        async with _tasks() as tasks:
            tasks.update(asyncio.create_task(work()) for _ in range(concurrency))
            await _all(tasks)

    async def open(self, talks: Iterator[Talk], times: Iterable[float], start: float) -> None:
        """Each talk starts at its time. It is made before that, so that making it delays nothing."""
        async with _tasks() as tasks:
            for offset in times:
                moment = start + offset
                if self._limits.until is not None and moment >= self._limits.until:
                    break
                talk = self._next(talks)
                if talk is None:
                    break
                await self._pace.until(moment)
                tasks.add(task := asyncio.create_task(self._play(talk, moment)))
                task.add_done_callback(lambda done: _forget(tasks, done))
            await _all(tasks)

    def _next(self, talks: Iterator[Talk]) -> Talk | None:
        """The next talk, shortened where it would exceed the number of requests."""
        left = None if self._limits.requests is None else self._limits.requests - self._promised
        talk = None if left == 0 else next(talks, None)
        if talk is None:
            return None
        turns = talk.turns if left is None else talk.turns[:left]
        self._promised += len(turns)
        return Talk(talk.index, turns)

    def _late(self) -> bool:
        return self._limits.until is not None and self._pace.now() >= self._limits.until

    async def _play(self, talk: Talk, scheduled: float | None) -> None:
        """All turns, each with the real answers so far. An error ends the talk."""
        history = History(self._chat)
        for number, turn in enumerate(talk.turns):
            if number:
                scheduled = self._pace.now() + self._limits.think
                await self._pace.until(scheduled)
                if self._late():
                    return
            prompt = history.ask(turn.prompt)
            index, self._sent = self._sent, self._sent + 1
            ask = Ask(prompt, turn.output_tokens, index, talk.index, number, scheduled, turn.asked_prompt)
            record, text = await self._sender.send(ask)
            self._done(record, text)
            if not record.ok:
                return
            history.answered(text)


class History:
    """A conversation so far: messages on the chat route, one growing text on the other."""

    def __init__(self, chat: bool) -> None:
        self._chat = chat
        self._messages: list[Message] = []
        self._text = ""

    def ask(self, prompt: Prompt) -> Prompt:
        """The whole prompt of the next turn."""
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
            return prompt
        if self._chat:
            self._messages += [{"role": "user", "content": prompt}] if isinstance(prompt, str) else _messages(prompt)
            return list(self._messages)
        self._text += prompt if isinstance(prompt, str) else _flat(prompt)
        return self._text

    def answered(self, text: str) -> None:
        self._messages.append({"role": "assistant", "content": text})
        self._text += text + "\n"


def _messages(prompt: Prompt) -> list[Message]:
    return [message for message in prompt if isinstance(message, dict)]


def _flat(prompt: Prompt) -> str:
    return "\n".join(str(message.get("content") or "") for message in _messages(prompt))


@asynccontextmanager
async def _tasks() -> AsyncIterator[set[asyncio.Task[None]]]:
    """Tasks that end with the block, however it ends."""
    tasks: set[asyncio.Task[None]] = set()
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _forget(tasks: set[asyncio.Task[None]], done: asyncio.Task[None]) -> None:
    """A long run keeps no finished tasks, but for those that failed."""
    if done.cancelled() or done.exception() is None:
        tasks.discard(done)


async def _all(tasks: set[asyncio.Task[None]]) -> None:
    """Wait for all; the first fault of ours ends the run."""
    await asyncio.gather(*tasks)
