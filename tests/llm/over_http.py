"""What a server around the same model file answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tailrace.api.state import AppState, one_model
from tailrace.config import Config
from tailrace.control.pipeline import Pipeline
from tailrace.llm.core import engine_config
from tailrace.llm.ready import ready_model
from tailrace.observe.metrics import Metrics
from tests.serving import in_process

Json = dict[str, Any]


async def over_http(path: Path, settings: Json, route: str, body: Json) -> Json:
    """A plain answer."""
    (answer,) = await all_over_http(path, settings, [(route, body)])
    return answer


async def all_over_http(path: Path, settings: Json, asked: Sequence[tuple[str, Json]]) -> list[Json]:
    """Plain answers to (route, body) of one server."""
    model = await asyncio.to_thread(ready_model, engine_config(path, settings), show=False)
    model.backend.start()
    try:
        pipeline = Pipeline(model.backend, Config().control, model.clock, Metrics())
        models = one_model(pipeline, model.tokenizer, model.template, Config(), model.clock)
        state = AppState(Config(), pipeline, models, Metrics(), model.clock)
        async with in_process(state) as client:
            responses = [await client.post(route, json=body) for route, body in asked]
    finally:
        model.backend.close()
    for response in responses:
        assert response.status_code == 200, response.text
    return [response.json() for response in responses]
