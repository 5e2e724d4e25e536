"""OpenAI's Batches: make one of a file, look at it, cancel it. Of one tenant alone."""

from __future__ import annotations

from os import urandom

from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.auth import authorize, principal_of
from tailrace.api.openapi import body_schema, errors
from tailrace.api.plain import body_of, json_reply
from tailrace.api.state import state_of
from tailrace.api.table import Table
from tailrace.control.answering.routes import FOR_JOBS
from tailrace.control.jobs.batch import BATCH, INPUT_PURPOSE
from tailrace.database.job import Counts, Job
from tailrace.errors import InvalidRequest, NotFound
from tailrace.protocol.batches import BatchBody, BatchRequest, batch_body
from tailrace.protocol.body import parse
from tailrace.protocol.responses.page import Page, listed

routes = Table("batches", prefix="/v1/batches", guard=authorize)


@routes.post(
    "",
    responses={200: {"model": BatchBody}, **errors(400, 401, 403, 503)},
    openapi_extra=body_schema(BatchRequest),
)
async def create(request: Request) -> Response:
    """Run each line of an uploaded file as a request, in the class `background`, within the completion window."""
    asked = parse(BatchRequest, await body_of(request))
    asked.check()
    window = asked.seconds()
    if asked.endpoint not in FOR_JOBS:
        known = ", ".join(FOR_JOBS)
        raise InvalidRequest(f"endpoint is {asked.endpoint[:80]!a}; accepted is one of {known}", param="endpoint")
    state, principal = state_of(request), principal_of(request)
    kept, wall = await state.keeping.needed(), state.clock.wall()
    file = await kept.files.find(principal.tenant, asked.input_file_id)
    if file is None or file.purpose != INPUT_PURPOSE:
        raise InvalidRequest(
            f"input_file_id is {asked.input_file_id[:80]!a}, which is no file with purpose 'batch'",
            param="input_file_id",
        )
    job = Job(
        id=f"batch_{urandom(16).hex()}",
        kind=BATCH,
        tenant=principal.tenant,
        key=principal.key,
        endpoint=asked.endpoint,
        created=wall,
        expires=wall + window,
        window=asked.completion_window,
        input_file=file.id,
        metadata=asked.metadata,
    )
    await kept.jobs.add(job)
    state.runner.wake()
    return json_reply(batch_body(job, Counts()), asked)


@routes.get("", responses=errors(400, 401, 403, 503))
async def list_batches(request: Request) -> Response:
    """The newest first; `limit` to 100, `after`."""
    asked = Page.newest_first(request.query_params)
    jobs = (await state_of(request).keeping.needed()).jobs
    found = await jobs.page(principal_of(request).tenant, BATCH, asked.after, asked.limit + 1)
    if found is None:
        raise InvalidRequest(f"after is {str(asked.after)[:80]!a}, which no batch has", param="after")
    return json_reply(listed([batch_body(*each) for each in found], asked.limit))


@routes.get("/{batch_id}", responses={200: {"model": BatchBody}, **errors(401, 403, 404, 503)})
async def retrieve(request: Request, batch_id: str) -> Response:
    return json_reply(batch_body(*await _found(request, batch_id)))


@routes.post("/{batch_id}/cancel", responses={200: {"model": BatchBody}, **errors(400, 401, 403, 404, 503)})
async def cancel(request: Request, batch_id: str) -> Response:
    """What has been answered stays; the rest is told in the file of errors."""
    await _found(request, batch_id)
    state = state_of(request)
    jobs = (await state.keeping.needed()).jobs
    cancelled = await jobs.cancel(principal_of(request).tenant, BATCH, batch_id, state.clock.wall())
    job, counts = await _found(request, batch_id)
    if not cancelled and job.cancelling is None:
        raise InvalidRequest(f"Cannot cancel a batch with status '{job.state}'.", param="batch_id")
    state.runner.stop(batch_id)
    return json_reply(batch_body(job, counts))


async def _found(request: Request, batch_id: str) -> tuple[Job, Counts]:
    jobs = (await state_of(request).keeping.needed()).jobs
    found = await jobs.find(principal_of(request).tenant, BATCH, batch_id)
    if found is None:
        raise NotFound(f"No batch found with id {batch_id[:80]!a}", param="batch_id")
    return found
