"""A page of a list: how many items, from where, in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.errors import InvalidRequest
from tailrace.frozen import frozen

_DEFAULT, _MOST = 20, 100


@frozen
class Page:
    """`after`: the id behind which it begins."""

    limit: int = _DEFAULT
    ascending: bool = False
    after: str | None = None

    @classmethod
    def of(cls, query: Mapping[str, str], default: int = _DEFAULT, most: int = _MOST) -> Page:
        """Raises InvalidRequest naming the parameter."""
        limit, order = query.get("limit", str(default)), query.get("order", "desc")
        if not (limit.isascii() and limit.isdigit() and len(limit) < 10 and 1 <= int(limit) <= most):
            raise InvalidRequest(f"limit is {limit[:40]!a}; accepted is 1 to {most}", param="limit")
        if order not in ("asc", "desc"):
            raise InvalidRequest(f"order is {order[:40]!a}; expected 'asc' or 'desc'", param="order")
        return cls(int(limit), order == "asc", query.get("after"))


def page(items: Sequence[dict[str, Any]], asked: Page) -> dict[str, Any]:
    """OpenAI's list of them. Raises InvalidRequest for an `after` that none has."""
    items = items if asked.ascending else items[::-1]
    if asked.after is not None:
        place = next((i for i, item in enumerate(items) if item["id"] == asked.after), None)
        if place is None:
            raise InvalidRequest(f"after is {asked.after[:80]!a}, which no item here has", param="after")
        items = items[place + 1 :]
    shown = list(items[: asked.limit])
    ends = {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {"first_id": "", "last_id": ""}
    return {"object": "list", "data": shown, **ends, "has_more": len(items) > len(shown)}
