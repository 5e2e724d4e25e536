"""`tailrace chat`: a conversation in the terminal, with the engine in this process or a server at a URL.

Keeps the history, streams the answer, and says after each how fast it came. Ctrl-C stops the answer, not the program.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Protocol

from tailrace.cli.output import console, show_error
from tailrace.config import Loaded
from tailrace.errors import TailraceError
from tailrace.frozen import frozen

HELP = "/reset forgets the conversation, /exit leaves (so does Ctrl-D), Ctrl-C stops an answer."

Message = dict[str, str]
Show = Callable[[str], None]


@frozen
class ChatOptions:
    """What was asked for on the command line. `url` empty: the engine runs in this process."""

    url: str
    key: str
    model: str
    system: str
    max_tokens: int
    temperature: float


@frozen
class Stats:
    """Of one answer. `per_second` counts tokens after the first; None when there were too few."""

    tokens: int
    first_seconds: float | None
    per_second: float | None
    finish: str = ""

    def __str__(self) -> str:
        parts = [f"{self.tokens} tokens"]
        if self.per_second is not None:
            parts.append(f"{self.per_second:.0f} tok/s")
        if self.first_seconds is not None:
            parts.append(f"first after {self.first_seconds * 1e3:.0f} ms")
        if self.finish == "length":
            parts.append("cut by --max-tokens or the context")
        return ", ".join(parts)


class Partner(Protocol):
    """Whoever answers. `answer` calls `show` with each piece of text; KeyboardInterrupt ends it early."""

    name: str

    def answer(self, messages: list[Message], show: Show) -> Stats: ...
    def close(self) -> None: ...


class Conversation:
    """The history and the loop over the user's lines."""

    def __init__(self, partner: Partner, system: str) -> None:
        self._partner = partner
        self._start: list[Message] = [{"role": "system", "content": system}] if system else []
        self.messages = list(self._start)

    def run(self, read: Callable[[], str]) -> None:
        """Until /exit or the end of input."""
        while True:
            try:
                line = read().strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                print()
                continue
            if line in ("/exit", "/quit"):
                return
            self._handle(line)

    def _handle(self, line: str) -> None:
        if line == "/reset":
            self.messages = list(self._start)
            console().print("[dim]forgotten[/]")
        elif line.startswith("/"):
            console().print(f"[dim]{HELP}[/]")
        elif line:
            self._turn(line)

    def _turn(self, line: str) -> None:
        """Ask, show, remember. A refused message is not remembered; a stopped answer is, as far as it came."""
        asked = [*self.messages, {"role": "user", "content": line}]
        pieces: list[str] = []

        def show(text: str) -> None:
            pieces.append(text)
            sys.stdout.write(text)
            sys.stdout.flush()

        try:
            note = str(self._partner.answer(asked, show))
        except KeyboardInterrupt:
            note = "stopped"
        except TailraceError as error:
            show_error(error)
            return
        self.messages = [*asked, {"role": "assistant", "content": "".join(pieces)}]
        print()
        console().print(f"[dim]{note}[/]")


def run_chat(loaded: Loaded, options: ChatOptions) -> None:
    partner = _partner(loaded, options)
    try:
        console().print(f"[bold]{partner.name}[/]  [dim]{HELP}[/]")
        Conversation(partner, options.system).run(_reader())
    finally:
        partner.close()


def _partner(loaded: Loaded, options: ChatOptions) -> Partner:
    if options.url:
        from tailrace.cli.chat_http import HttpPartner

        return HttpPartner(options)
    from tailrace.cli.chat_local import LocalPartner

    return LocalPartner(loaded, options)


def _reader() -> Callable[[], str]:
    """Lines from the terminal, with editing and history where the platform has them."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
    prompt = "> " if sys.stdin.isatty() else ""
    return lambda: input(prompt)
