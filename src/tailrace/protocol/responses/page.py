"""A page of a list: how many items, from where, in which order; and what of a query is a whole number."""

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
        limit, order = whole_number(query, "limit", default, most), query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidRequest(f"order is {order[:40]!a}; expected 'asc' or 'desc'", param="order")
        return cls(limit, order == "asc", query.get("after"))

    @classmethod
    def newest_first(cls, query: Mapping[str, str]) -> Page:
        """Of a list that has no other order. Raises InvalidRequest naming the parameter."""
        found = cls.of(query)
        if found.ascending:
            raise InvalidRequest("order is 'asc'; the newest come first, always", param="order")
        return found


def whole_number(query: Mapping[str, str], name: str, default: int, most: int) -> int:
    """From 1 to `most`. Raises InvalidRequest naming the parameter."""
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most)) and 1 <= int(text) <= most):
        raise InvalidRequest(f"{name} is {text[:40]!a}; accepted is 1 to {most}", param=name)
    return int(text)


def page(items: Sequence[dict[str, Any]], asked: Page) -> dict[str, Any]:
    """OpenAI's list of them. Raises InvalidRequest for an `after` that none has."""
    items = items if asked.ascending else items[::-1]
    if asked.after is not None:
        place = next((i for i, item in enumerate(items) if item["id"] == asked.after), None)
        if place is None:
            raise InvalidRequest(f"after is {asked.after[:80]!a}, which no item here has", param="after")
        items = items[place + 1 :]
    return listed(items, asked.limit)


def listed(items: Sequence[dict[str, Any]], limit: int, name: str = "id") -> dict[str, Any]:
    """The first `limit` of them, which are known by their `name`; one more says that there are more."""
    shown = list(items[:limit])
    first, last = (shown[0][name], shown[-1][name]) if shown else ("", "")
    return {"object": "list", "data": shown, "first_id": first, "last_id": last, "has_more": len(items) > limit}
