"""The HTTP application over a given state."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from tailrace.api.edge import Edge
from tailrace.api.errors import on_http_error, on_tailrace_error
from tailrace.api.openapi import publish
from tailrace.api.routes import admin, openai, operator, text
from tailrace.api.state import AppState
from tailrace.errors import TailraceError


def create_app(state: AppState) -> FastAPI:
    app = FastAPI(
        title="tailrace", version="0.1.0", description="OpenAI-compatible inference", redoc_url=None,
        redirect_slashes=False,
    )  # fmt: skip
    app.state.tailrace = state
    for routes in (openai, text, admin, operator):
        app.include_router(routes.router)
    app.add_exception_handler(TailraceError, on_tailrace_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(RequestValidationError, on_http_error)
    app.add_middleware(Edge, clock=state.clock)
    publish(app)
    return app


__all__ = ["AppState", "create_app"]
