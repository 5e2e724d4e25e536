"""The text around calls. White space next to a call belongs to neither, unless text stands on both sides; an answer
without calls is shown to the letter."""

from __future__ import annotations

from tailrace.text.parsers.delta import Delta, Kind


class Prose:
    def __init__(self) -> None:
        self._gap = ""  # white space that text may follow
        self._begun = False  # some text was shown
        self._called = False  # a call stands behind the last text

    def text(self, text: str) -> list[Delta]:
        """What can be shown."""
        body = text.rstrip()
        if not body:
            self._gap += text
            return []
        lead = self._gap if self._begun or not self._called else ""
        if self._called and not self._begun:
            body = body.lstrip()
        self._gap, self._begun, self._called = text[len(text.rstrip()) :], True, False
        return [Delta(Kind.TEXT, lead + body)]

    def call(self) -> None:
        """A call begins here."""
        self._called = True

    def finish(self) -> list[Delta]:
        gap, self._gap = self._gap, ""
        return [Delta(Kind.TEXT, gap)] if gap and not self._called else []
