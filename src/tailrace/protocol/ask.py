"""What a body asks for once it is checked: requests for a backend, and how the answer is to be shaped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

from tailrace.errors import ContextLengthExceeded
from tailrace.frozen import frozen
from tailrace.protocol.sampling import Limits
from tailrace.text.parsers.delta import Parser
from tailrace.types import GenerateRequest, Tokens


@frozen
class Ask:
    """`requests` has one entry for each prompt; choice `i` of prompt `p` is choice `p * n + i` of the answer.

    `echo` holds the prompts' texts when they are to be put in front of the answers.
    """

    requests: tuple[GenerateRequest, ...]
    stream: bool
    include_usage: bool
    n: int
    logprobs: bool
    echo: tuple[str, ...] = ()
    reader: Callable[[], Parser] | None = None  # of one choice's text, where it may hold more than prose
    prompt_logprobs: int | None = None  # alternatives of each prompt token in `prompt_logprobs`; None: no such field
    keep: int = 0  # of the n choices of a prompt only so many are shown, the most likely ones; 0: all
    sorted: bool = False  # the choices come best first, and those without tokens are none
    rendered: str | None = None  # a chat's prompt behind its template, before it is cut
    call_ids: int = 0  # letters and digits of a call's id; 0: as OpenAI's look
    about: Mapping[str, Any] = field(default_factory=dict)  # what the answer's form is told of the body
    form: object = None  # of vectors: the body that asked for them, which knows how they are shown

    @property
    def prompt_tokens(self) -> int:
        """Every prompt once, however many choices it gets."""
        return sum(len(request.prompt) for request in self.requests)


class TextModel(Protocol):
    """The part of a tokenizer that requests need."""

    def encode_rendered(self, text: str) -> Tokens: ...
    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> Tokens: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def fewest_tokens(self, n_bytes: int) -> int: ...
    @property
    def end_of_text(self) -> int | None: ...


class Template(Protocol):
    """The part of a chat template that requests need; `text.template` says what it raises."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str: ...


def check_size(characters: int, tokenizer: TextModel, limits: Limits, field: str) -> None:
    """Refuse a text that cannot fit whatever its tokens are, before any work on it."""
    fewest = tokenizer.fewest_tokens(characters)  # a character is at least one byte
    check_fits(fewest, limits, field, room=0, least=True)


def check_fits(prompt_tokens: int, limits: Limits, field: str, *, room: int = 1, least: bool = False) -> None:
    """Raises ContextLengthExceeded unless the context leaves `room` tokens for the answer. `least`: the number is a
    lower bound."""
    if prompt_tokens + room <= limits.max_context:
        return
    alone = room == 0 and not least
    raise ContextLengthExceeded(
        f"This model's context has {limits.max_context} tokens{'' if alone else ', prompt and answer together'}; "
        f"{field} has {'at least ' if least else ''}{prompt_tokens}. "
        f"Shorten it to {limits.max_context - (not alone)} or fewer",
        param=field,
    )
