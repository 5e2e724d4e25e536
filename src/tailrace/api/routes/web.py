"""The web view at /ui: files of the package `tailrace.api.web`, and nothing else that lies on the disk.

Open without a key, as the page holds nothing of anyone's: what it shows it asks for with its user's keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.table import Table
from tailrace.api.wire import header
from tailrace.errors import NotFound
from tailrace.frozen import frozen

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Scripts and styles are files of ours; text never becomes markup, as scripts have no way to make any (trusted-types).
_POLICY = "; ".join(
    (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'",
        "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
        "require-trusted-types-for 'script'", "trusted-types 'none'",
    )
)  # fmt: skip
_HEADERS = {
    "cache-control": "no-cache",  # kept, and asked for again by its tag: modules of two versions never meet
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@frozen
class Asset:
    body: bytes
    media_type: str
    tag: str


class Web:
    """`routes` of the view. Its files are read at the first request."""

    def __init__(self) -> None:
        self._assets: dict[str, Asset] | None = None
        self.routes = Table("web")
        for path in ("/", "/ui"):
            self.routes.get(path)(_to_view)
        self.routes.get("/ui/")(self._index)
        self.routes.get("/ui/{name:path}")(self._asset)

    async def _index(self, request: Request) -> Response:
        return await self._asset(request, "index.html")

    async def _asset(self, request: Request, name: str) -> Response:
        """`name` is looked up among the files that there are, so no path leads out of them."""
        if self._assets is None:
            self._assets = await asyncio.to_thread(lambda: dict(_read(files("tailrace.api") / "web")))
        asset = self._assets.get(name)
        if asset is None:
            raise NotFound(f"The web view has no file {name[:200]!a}", param="name")
        headers = {**_HEADERS, "etag": asset.tag}
        if asset.tag in (header(request.scope, b"if-none-match") or ""):
            return Response(None, 304, headers)
        return Response(asset.body, headers={**headers, "content-type": asset.media_type})


async def _to_view(request: Request) -> Response:
    return Response(None, 307, {"location": "ui/"})  # relative: a proxy may have put a prefix in front


def _read(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Asset]]:
    for found in folder.iterdir():
        name, ending = prefix + found.name, found.name[found.name.rfind(".") :]
        if found.is_dir():
            yield from _read(found, f"{name}/")
        elif ending in _TYPES:
            body = found.read_bytes()
            yield name, Asset(body, _TYPES[ending], f'"{sha256(body).hexdigest()[:20]}"')
