"""A file in a multipart form: read piece by piece, onto the disk where it is large, and never beyond its bound."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from tailrace.api.wire import ClientGone, header
from tailrace.errors import BodyTooLarge, InvalidRequest

_FORM = 64 * 1024  # bytes of a form beside its file
_PIECE = 256 * 1024  # bytes that are read of it at once
_FIELDS = 16  # that a form may have


@asynccontextmanager
async def uploaded(request: Request, most: int) -> AsyncIterator[FormData]:
    """The form, of which the file has `most` bytes at the most. Raises InvalidRequest, BodyTooLarge, ClientGone."""
    kind = header(request.scope, b"content-type") or ""
    if not kind.lower().startswith("multipart/form-data"):
        raise InvalidRequest("A file is sent as multipart/form-data, with the fields file and purpose", param="file")
    stated = header(request.scope, b"content-length") or ""
    if stated.isdigit() and int(stated) > most + _FORM:
        raise _too_large(most)
    parser = MultiPartParser(request.headers, _bounded(request, most), max_files=1, max_fields=_FIELDS)
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError) as error:
        reason = getattr(error, "message", "it has no boundary")
        raise InvalidRequest(f"The form cannot be read: {reason}", code="invalid_form") from None
    try:
        yield form
    finally:
        await form.close()


async def pieces(file: UploadFile) -> AsyncIterator[bytes]:
    while data := await file.read(_PIECE):
        yield data


async def _bounded(request: Request, most: int) -> AsyncGenerator[bytes, None]:
    left = most + _FORM
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body: bytes = message.get("body", b"")
        left -= len(body)
        if left < 0:
            raise _too_large(most)
        yield body
        if not message.get("more_body", False):
            return


def _too_large(most: int) -> BodyTooLarge:
    return BodyTooLarge(f"The file is larger than {most} bytes (--max-file-bytes)", param="file")
