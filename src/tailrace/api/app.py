"""The HTTP application over a given state."""

from __future__ import annotations

from tailrace.api.edge import Edge
from tailrace.api.openapi import Pages
from tailrace.api.routes import (
    accounts,
    adapters,
    admin,
    batches,
    budget,
    files,
    jobs,
    messages,
    openai,
    operator,
    report,
    requests,
    responses,
    streams,
    text,
    vectors,
    web,
)
from tailrace.api.state import AppState
from tailrace.api.table import Routes


def create_app(state: AppState) -> Edge:
    generating = (openai.routes, responses.routes, messages.routes, vectors.routes)
    kept = (streams.routes, jobs.routes, files.routes, batches.routes, requests.routes)
    own = (report.own, text.routes, budget.routes, adapters.routes)
    admins = (admin.routes, operator.routes, accounts.routes, report.all_tenants)
    tables = (*generating, *kept, *own, *admins)
    return Edge(Routes((*tables, Pages(tables).routes, web.Web().routes)), state)


__all__ = ["AppState", "create_app"]
