"""Calls written as JSON: behind a mark anywhere in the text (`<tool_call>{...}</tool_call>`, `[TOOL_CALLS][{...}]`), or
as the whole answer (`{...}; {...}`, a list, a fenced block).

    prose --mark--> lead --"{"--> call --its end--> behind --"{"--> call
      ^               |             |                 |
      +---- not a call, shown as the text it is ------+

Each piece of text is read once. What may still become a mark or a call is held back, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tailrace.frozen import frozen
from tailrace.text.parsers.delta import Delta, Kind, Signature, merged
from tailrace.text.parsers.json_call import WHITE, JsonCall, NotACall
from tailrace.text.parsers.prose import Prose
from tailrace.text.stops import StopFinder, StopStrings


@frozen
class JsonSyntax:
    """What stands around calls. Without `marks` calls are at the very beginning of an answer, or not at all.

    `leads` may come before a call, `ends` behind it; both may be left out, and white space is free. `separators` are
    characters between calls. `named`: a call may be written `name{...}`, or `name[ARGS]{...}`.
    """

    marks: tuple[str, ...] = ()
    leads: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    separators: str = ","
    named: bool = False


_State = Callable[[str], str]  # takes some of the text, returns the rest


class JsonCalls:
    """See Parser."""

    def __init__(self, syntax: JsonSyntax, tools: Sequence[Signature]) -> None:
        self._syntax = syntax
        self._names = frozenset(tool.name for tool in tools)
        self._marks = StopStrings(syntax.marks) if syntax.marks else None
        self._finder: StopFinder | None = None
        self._prose = Prose()
        self._raw = ""  # read since the last call or text, shown if no call comes of it
        self._held = ""  # the end of it, which may become a lead, a name, or what stands behind a call
        self._read: JsonCall | None = None
        self._calls = 0
        self._named = False  # the call at hand has been told of
        self._out: list[Delta] = []
        self._state: _State = self._in_lead if self._marks is None else self._to_prose()

    @property
    def unfinished(self) -> bool:
        return self._read is not None and self._named

    def push(self, text: str) -> list[Delta]:
        while text:
            text = self._state(text)
        return self._take()

    def finish(self) -> list[Delta]:
        if self._finder is not None:
            self._out += self._prose.text(self._finder.flush())
        behind = self._state == self._behind
        if not self.unfinished and not (behind and self._ends_with_grace()):
            self._out += self._prose.text(self._raw)
        self._raw = ""
        self._out += self._prose.finish()
        return self._take()

    def _take(self) -> list[Delta]:
        out, self._out = merged(self._out), []
        return out

    # --- text

    def _to_prose(self) -> _State:
        self._finder = None if self._marks is None else StopFinder(self._marks)
        self._raw = self._held = ""
        self._read = None
        return self._in_prose

    def _in_prose(self, text: str) -> str:
        if self._finder is None:
            self._out += self._prose.text(text)
            return ""
        shown, match = self._finder.push(text)
        if match is None:
            self._out += self._prose.text(shown)
            return ""
        mark = match.string
        self._out += self._prose.text(shown[: -len(mark)])
        self._finder, self._raw, self._held = None, mark, ""
        self._state = self._in_lead
        return text[match.end :]

    def _no_call(self, rest: str) -> str:
        """What was read is text after all; `rest`, the character that told, is yet to be read."""
        self._out += self._prose.text(self._raw)
        self._state = self._to_prose()
        return rest

    # --- between a mark and a call

    def _in_lead(self, text: str) -> str:
        for at, char in enumerate(text):
            if char == "{" and (call := self._begun()) is not None:
                return self._begin(call, text[at:])
            if not self._leads(char):
                return self._no_call(text[at:])
            self._raw += char
        return ""

    def _leads(self, char: str) -> bool:
        leads, held = self._syntax.leads, self._held + char
        if any(lead.startswith(held) for lead in leads):
            self._held = held
            return True
        if self._held in leads:
            self._held = ""
            return self._leads(char)
        if not self._held and char in WHITE:
            return True
        self._held = held
        return self._syntax.named and self._may_be_named(held)

    def _may_be_named(self, held: str) -> bool:
        """A name, or one and what stands between it and the arguments."""
        name, bracket, _ = held.partition("[")
        name = name.rstrip() if bracket else name
        if bracket or held.endswith(tuple(WHITE)):
            return name.strip() in self._names and len(held) < 200
        return any(known.startswith(name) for known in self._names)

    def _begun(self) -> JsonCall | None:
        name = self._held.partition("[")[0].strip()
        if not name or self._held in self._syntax.leads:
            return JsonCall(self._names)
        return JsonCall(self._names, name) if self._syntax.named and name in self._names else None

    # --- a call

    def _begin(self, call: JsonCall, text: str) -> str:
        self._read, self._named, self._held = call, False, ""
        self._state = self._in_call
        return text

    def _in_call(self, text: str) -> str:
        call = self._read
        assert call is not None
        for at, char in enumerate(text):
            try:
                taken = call.take(char)
            except NotACall:
                self._read = None
                return self._no_call(text[at:])
            if taken:
                self._raw += char
            if call.done:
                self._tell(call)
                self._read, self._raw, self._held = None, "", ""
                self._state = self._behind
                return text[at + taken :]
        self._tell(call)
        return ""

    def _tell(self, call: JsonCall) -> None:
        if not call.announced:
            return
        if not self._named:
            self._named = True
            self._raw = ""
            self._prose.call()
            self._out.append(Delta(Kind.CALL, call=self._calls, name=call.name))
            self._calls += 1
        self._raw = ""
        self._out.append(Delta(Kind.CALL, call.take_arguments(), self._calls - 1))

    # --- behind a call

    def _behind(self, text: str) -> str:
        syntax = self._syntax
        for at, char in enumerate(text):
            if char == "{" and not self._held:
                return self._begin(JsonCall(self._names), text[at:])
            held = self._held + char
            if any(end.startswith(held) for end in syntax.ends):
                self._raw += char
                if held in syntax.ends:
                    self._raw = self._held = ""
                    if syntax.marks:
                        self._state = self._to_prose()
                        return text[at + 1 :]
                else:
                    self._held = held
            elif not self._held and char in WHITE + syntax.separators:
                self._raw += char
            else:
                return self._no_call(text[at:])
        return ""

    def _ends_with_grace(self) -> bool:
        """The answer ends in what may stand behind a call."""
        return not self._raw.strip(WHITE + self._syntax.separators + self._held)
