"""OpenAI's Files: what batches are made of, and what they make. Of one tenant alone."""

from __future__ import annotations

from os import urandom
from urllib.parse import quote

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tailrace.api.auth import authorize, principal_of
from tailrace.api.openapi import errors
from tailrace.api.plain import json_reply
from tailrace.api.state import state_of
from tailrace.api.table import Table
from tailrace.api.upload import pieces, uploaded
from tailrace.control.jobs.batch import INPUT_PURPOSE
from tailrace.database.file import StoredFile
from tailrace.errors import BodyTooLarge, InvalidRequest, NotFound
from tailrace.protocol.batches import FileBody, file_body, file_name
from tailrace.protocol.responses.page import Page, listed
from tailrace.protocol.responses.schema import Deleted

_MOST = 10_000  # files on a page

routes = Table("files", prefix="/v1/files", guard=authorize)


@routes.post("", responses={200: {"model": FileBody}, **errors(400, 401, 403, 413, 503)})
async def upload(request: Request) -> Response:
    """A form with `file`, JSON lines, and `purpose`, which is `batch`."""
    state, tenant = state_of(request), principal_of(request).tenant
    files = (await state.keeping.needed()).files
    most = state.config.api.max_file_bytes
    async with uploaded(request, most) as form:
        purpose, file, unknown = form.get("purpose"), form.get("file"), set(form) - {"purpose", "file"}
        if not isinstance(file, UploadFile):
            raise InvalidRequest("file is missing, or is no file", param="file", code="missing_field")
        if purpose != INPUT_PURPOSE:
            raise InvalidRequest(f"purpose is {str(purpose)[:40]!a}; accepted is 'batch'", param="purpose")
        if (file.size or 0) > most:
            raise BodyTooLarge(f"The file is larger than {most} bytes (--max-file-bytes)", param="file")
        file_id = f"file-{urandom(16).hex()}"
        try:
            size = await files.write(file_id, pieces(file))
            made = StoredFile(file_id, tenant, INPUT_PURPOSE, file_name(file.filename), size, state.clock.wall())
            await files.add(made)
        except BaseException:
            await files.drop(file_id)
            raise
    return json_reply(file_body(made), unknown)


@routes.get("", responses=errors(400, 401, 403, 503))
async def list_files(request: Request) -> Response:
    """`purpose`, `limit` to 10000, `order`, `after`."""
    state, asked = state_of(request), Page.of(request.query_params, _MOST, _MOST)
    files = (await state.keeping.needed()).files
    found = await files.page(
        principal_of(request).tenant,
        request.query_params.get("purpose"),
        asked.after,
        asked.limit + 1,
        newest_first=not asked.ascending,
    )
    if found is None:
        raise InvalidRequest(f"after is {str(asked.after)[:80]!a}, which no file has", param="after")
    return json_reply(listed([file_body(each) for each in found], asked.limit))


@routes.get("/{file_id}", responses={200: {"model": FileBody}, **errors(401, 403, 404, 503)})
async def retrieve(request: Request, file_id: str) -> Response:
    return json_reply(file_body(await _found(request, file_id)))


@routes.get("/{file_id}/content", response_class=Response, responses=errors(401, 403, 404, 503))
async def content(request: Request, file_id: str) -> Response:
    """The file as it is."""
    file = await _found(request, file_id)
    files = (await state_of(request).keeping.needed()).files
    headers = {
        "content-length": str(file.size),
        "content-disposition": f"attachment; filename*=UTF-8''{quote(file.name)}",
        "x-content-type-options": "nosniff",
    }
    return StreamingResponse(files.content(file.id), headers=headers, media_type="application/octet-stream")


@routes.delete("/{file_id}", responses={200: {"model": Deleted}, **errors(401, 403, 404, 503)})
async def delete(request: Request, file_id: str) -> Response:
    """A batch that has begun does not need its input any more."""
    await _found(request, file_id)
    await (await state_of(request).keeping.needed()).files.delete(principal_of(request).tenant, file_id)
    return json_reply({"id": file_id, "object": "file", "deleted": True})


async def _found(request: Request, file_id: str) -> StoredFile:
    files = (await state_of(request).keeping.needed()).files
    found = await files.find(principal_of(request).tenant, file_id)
    if found is None:
        raise NotFound(f"No such File object: {file_id[:80]!a}", param="file_id")
    return found
