"""Routes: what answers each, who may call it, and what the published page says of it.

Starlette's router serves them: FastAPI would take longer to call a handler than the plane takes to decide about its
request. It writes the page (`openapi`), from the same table, when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from tailrace.frozen import frozen

Handler = Callable[..., Awaitable[Response]]  # of the request, and the parameters in its path by name
Guard = Callable[[Request], object]  # raises for a caller who may not
H = TypeVar("H", bound=Handler)


@frozen
class Endpoint:
    """`described`: FastAPI's own arguments for a route."""

    method: str
    path: str
    handler: Handler
    guard: Guard | None
    described: dict[str, Any]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if self.guard is not None:
            self.guard(request)
        response = await self.handler(request, **scope["path_params"])
        await response(scope, receive, send)


class Table:
    """The routes of one API. `guard` stands before each."""

    def __init__(self, tag: str, *, prefix: str = "", guard: Guard | None = None) -> None:
        self.tag = tag
        self.guard = guard
        self._prefix = prefix
        self._endpoints: list[Endpoint] = []

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._endpoints)

    def get(self, path: str, **described: Any) -> Callable[[H], H]:
        return self._adding("GET", path, described)

    def post(self, path: str, **described: Any) -> Callable[[H], H]:
        return self._adding("POST", path, described)

    def delete(self, path: str, **described: Any) -> Callable[[H], H]:
        return self._adding("DELETE", path, described)

    def patch(self, path: str, **described: Any) -> Callable[[H], H]:
        return self._adding("PATCH", path, described)

    def _adding(self, method: str, path: str, described: dict[str, Any]) -> Callable[[H], H]:
        def add(handler: H) -> H:
            self._endpoints.append(Endpoint(method, self._prefix + path, handler, self.guard, described))
            return handler

        return add


class Routes:
    """Raises HTTPException for what is not in the tables. Paths without parameters are looked up, others matched."""

    def __init__(self, tables: Iterable[Table]) -> None:
        endpoints = [endpoint for table in tables for endpoint in table]
        self._known = {(each.method, each.path): each for each in reversed(endpoints) if "{" not in each.path}
        self._router = Router([_route(endpoint) for endpoint in endpoints], redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = None if scope.get("root_path") else self._known.get((scope.get("method", ""), scope["path"]))
        if known is None:
            await self._router(scope, receive, send)
            return
        scope["path_params"], scope["endpoint"] = {}, known
        await known(scope, receive, send)


def _route(endpoint: Endpoint) -> Route:
    route = Route(endpoint.path, endpoint, methods=[endpoint.method], name=endpoint.handler.__name__)
    route.methods = {endpoint.method}  # HEAD is the edge's
    return route
