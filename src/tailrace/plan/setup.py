"""From flags and settings to what is simulated; measures this machine when asked to."""

from __future__ import annotations

from dataclasses import replace

from tailrace.config import Config
from tailrace.errors import ConfigError
from tailrace.figures.quantities import numbers, seconds
from tailrace.llm.ready import ready_model
from tailrace.plan.baselines import Classic
from tailrace.plan.clients import Habits
from tailrace.plan.options import Options
from tailrace.plan.simulator import Setup
from tailrace.plan.steps import Machine, parse_machine
from tailrace.plan.workload import Scale


def setup(options: Options, config: Config) -> Setup:
    """Raises ConfigError; with `--steps measure` also what loading a model raises."""
    scale = Scale(
        options.rate_scale,
        options.length_scale,
        _window(options.window),
        options.rate,
        options.requests,
        options.max_input,
        options.max_output,
    )
    made = Setup(
        config=config,
        scale=scale,
        habits=Habits(options.max_tokens, 1 + options.retries),
        classic=Classic.of(options.baseline, seconds(options.batch_window, "--batch-window")),
        kv_tokens=options.kv_tokens,
        seed=options.seed,
    )
    if options.steps == "measure":
        return measured(made, options.noise)
    return replace(made, machine=parse_machine(options.steps, options.noise))


def measured(made: Setup, noise: float) -> Setup:
    """The settings' model on this machine: step times by its calibration, KV room and context as `serve` would."""
    engine = made.config.engine
    model = ready_model(engine)
    parts = model.parts
    assert parts.capacity is not None
    machine = Machine(tuple(parts.cost.coefficients.tolist()), noise, said=f"measured with {model.name}")
    context = parts.scheduler.limits.max_context
    config = replace(made.config, engine=replace(engine, max_context=context))
    return replace(made, config=config, machine=machine, kv_tokens=parts.capacity.tokens)


def _window(text: str) -> tuple[float, float] | None:
    if not text:
        return None
    start, stop = numbers(text, 2, "--window", "two numbers of seconds, such as 600-1200")
    if start >= stop:
        raise ConfigError(f"--window {text!r}: accepted is a smaller number, then a larger one", param="--window")
    return start, stop
