"""A picture of the ratios: one bar for each row and peer, a line at 1."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

LEFT, WIDTH, ROW = 470, 420, 18
COLOURS = ("#3b75af", "#d8822e", "#52a35a", "#a05195")


def bars(rows: Sequence[dict[str, Any]]) -> str:
    """An SVG document."""
    found = [(row["work"], peer, ratio) for row in rows for peer, ratio in row["tailrace_over"].items()]
    peers = sorted({peer for _, peer, _ in found})
    most = max((ratio for *_, ratio in found), default=1.0)
    scale = WIDTH / max(most, 1.0)
    height = ROW * (len(found) + 2)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 60}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<line x1="{LEFT + scale:.1f}" x2="{LEFT + scale:.1f}" y1="0" y2="{height}" stroke="#888" '
        'stroke-dasharray="3 3"/>',
    ]
    for number, (work, peer, ratio) in enumerate(found, start=1):
        y = ROW * number
        colour = COLOURS[peers.index(peer) % len(COLOURS)]
        lines.append(f'<text x="{LEFT - 6}" y="{y}" text-anchor="end">{escape(work)} / {escape(peer)}</text>')
        lines.append(f'<rect x="{LEFT}" y="{y - 10}" width="{ratio * scale:.1f}" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{LEFT + ratio * scale + 4:.1f}" y="{y}">{ratio:.2f}x</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"
