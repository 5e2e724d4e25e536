"""Code blocks of the documentation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.*)$", flags=re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """`title` is the nearest heading above."""

    page: str
    title: str
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}: {self.title}"


def blocks(page: str) -> list[Block]:
    """Of a page under docs/, in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        title = [heading[1] for heading in _HEADING.finditer(text, 0, match.start())][-1]
        found.append(Block(page, title, match[1], match[2]))
    return found
