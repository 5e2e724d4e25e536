"""A server that keeps what every engine step took, for comparisons with a simulation.

    python -m benchmarks.serving.recorded_server OUT.json MODEL

Prints its address; SIGTERM ends it, and leaves OUT.json: `steps` as [P, D, K, A, seconds, when it ended], `overhead` in
seconds between two steps of the same answers.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from tailrace.api.server import serve
from tailrace.api.state import AppState, one_model
from tailrace.config import Config, load
from tailrace.control.pipeline import Pipeline
from tailrace.engine.cost import CostModel
from tailrace.engine.step import Work
from tailrace.llm.ready import Model, ready_model
from tailrace.observe.metrics import Metrics


class Recorder:
    """Listens to what a cost model is told."""

    def __init__(self, cost: CostModel) -> None:
        self.steps: list[list[float]] = []
        self._learn = cost.observe
        cost.observe = self.observe  # type: ignore[method-assign]

    def observe(self, work: Work, seconds: float) -> float:
        self.steps.append([*work, seconds, time.perf_counter()])
        return self._learn(work, seconds)

    @property
    def overhead(self) -> float:
        """Mean seconds between the end of a step and the next one's start, where someone's next token waited for it."""
        pairs = zip(self.steps, self.steps[1:], strict=False)
        gaps = [after[5] - after[4] - before[5] for before, after in pairs if after[1]]
        return sum(gaps) / max(len(gaps), 1)


async def run(model: Model, config: Config) -> None:
    metrics = Metrics()
    model.backend.start()
    try:
        pipeline = Pipeline(model.backend, config.control, model.clock, metrics)
        models = one_model(pipeline, model.tokenizer, model.template, config, model.clock)
        state = AppState(config, pipeline, models, metrics, model.clock)
        await serve(state, on_listening=lambda url: print(url, flush=True))
    finally:
        model.backend.close()


def main(out: Path, model_name: str) -> None:
    config = load(flags={"engine.model": model_name, "engine.speculate": "off", "api.port": "0"}).config
    model = ready_model(config.engine, show=False)
    recorder = Recorder(model.parts.cost)
    asyncio.run(run(model, config))
    capacity = model.parts.capacity
    assert capacity is not None
    found = {
        "steps": recorder.steps,
        "overhead": recorder.overhead,
        "kv_tokens": capacity.tokens,
        "max_context": model.parts.scheduler.limits.max_context,
        "max_sequences": config.engine.max_sequences,
    }
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
