"""What a model thinks before it answers: between two marks at the beginning of its text, the first of which may already
stand at the end of the prompt. Behind them comes the answer, which another parser may read.

    opening --begin--> thinking --end--> the answer
       +---- anything else ---------------^

White space at the edges of either is not part of it. A text that does not begin with the mark is all answer.
"""

from __future__ import annotations

from types import MappingProxyType

from tailrace.errors import ConfigError
from tailrace.frozen import frozen
from tailrace.text.parsers.delta import Delta, Kind, Parser, merged
from tailrace.text.stops import StopFinder, StopStrings


@frozen
class ReasoningFormat:
    name: str
    begin: str
    end: str

    @property
    def marks(self) -> tuple[str, str]:
        return self.begin, self.end


REASONING = MappingProxyType(
    {
        "think": ReasoningFormat("think", "<think>", "</think>"),
        "thought": ReasoningFormat("thought", "<thought>", "</thought>"),
        "mistral": ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
    }
)
AUTO, NONE = "auto", "none"


def reasoning_format(name: str, template: str) -> ReasoningFormat | None:
    """`name` of a format, NONE, or AUTO: the one whose marks the template knows. Raises ConfigError."""
    if name == NONE:
        return None
    if name == AUTO:
        return next((form for form in REASONING.values() if form.end in template), None)
    if name not in REASONING:
        known = ", ".join((AUTO, NONE, *REASONING))
        raise ConfigError(f"reasoning_parser is {name}; known are {known}", param="reasoning_parser")
    return REASONING[name]


class Plain:
    """An answer that is only text. See Parser."""

    unfinished = False

    def push(self, text: str) -> list[Delta]:
        return [Delta(Kind.TEXT, text)] if text else []

    def finish(self) -> list[Delta]:
        return []


class Reasoning:
    """See Parser. `thinking`: the text so far ends within the thoughts, or in their mark."""

    def __init__(self, form: ReasoningFormat, answer: Parser, *, inside: bool) -> None:
        """`inside`: the prompt ends within the thoughts."""
        self._form = form
        self._answer = answer
        self._held = ""  # white space at an edge; before the mark, all there is
        self._finder: StopFinder | None = StopFinder(StopStrings((form.end,)))
        self._begun = False  # some of the thoughts were shown
        self._opening = not inside
        self._leads = False  # white space between thoughts and answer may still come
        self.thinking = inside

    @property
    def unfinished(self) -> bool:
        return self._answer.unfinished

    def push(self, text: str) -> list[Delta]:
        out: list[Delta] = []
        if self._opening:
            text = self._open(text)
        if self.thinking and not self._opening:
            text = self._think(text, out)
        if text:
            out += self._answered(text)
        return merged(out)

    def finish(self) -> list[Delta]:
        out: list[Delta] = []
        if self._opening:
            out += self._answer.push(self._held)
        elif self.thinking and self._finder is not None:
            self._thought(self._finder.flush(), out)
        return merged([*out, *self._answer.finish()])

    def _open(self, text: str) -> str:
        """What stands behind the mark, or all that was held where there is none."""
        self._held += text
        begin, found = self._form.begin, self._held.lstrip()
        if found.startswith(begin):
            self._opening, self._held, self.thinking = False, "", True
            return found[len(begin) :]
        if begin.startswith(found):
            self.thinking = bool(found)
            return ""
        held, self._held = self._held, ""
        self._opening = self.thinking = False
        return held

    def _think(self, text: str, out: list[Delta]) -> str:
        assert self._finder is not None
        shown, match = self._finder.push(text)
        if match is None:
            self._thought(shown, out)
            return ""
        self._thought(shown[: -len(match.string)], out)
        self._finder, self.thinking, self._leads = None, False, True
        return text[match.end :]

    def _thought(self, text: str, out: list[Delta]) -> None:
        text = self._held + text if self._begun else text.lstrip()
        body = text.rstrip()
        self._held = text[len(body) :]
        if body:
            self._begun = True
            out.append(Delta(Kind.REASONING, body))

    def _answered(self, text: str) -> list[Delta]:
        if self._leads:
            text = text.lstrip()
            self._leads = not text
        return self._answer.push(text) if text else []
