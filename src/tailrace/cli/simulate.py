"""`tailrace simulate`: from flags and settings to a simulation, its table, file and charts."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tailrace.cli.flags import option_parameters, setting_flags, sign
from tailrace.config import Loaded
from tailrace.plan.options import Options

if TYPE_CHECKING:
    from tailrace.plan.simulator import Setup

EXAMPLES = """\b
Examples:
  tailrace simulate trace.csv --rate-scale 2 --slo ttft=1s,tpot=200ms
  tailrace simulate trace.jsonl --length-scale 0.0625 --retries 3 --plot out.html
  tailrace simulate trace.csv --config tailrace.toml --steps measure --json out.json
  tailrace simulate trace.csv --baseline static --baseline reserve"""


def run_simulation(trace: str, loaded: Loaded, **given: Any) -> None:
    """Replay recorded traffic through the real scheduler and queue on a clock that jumps: what would users see?"""
    from tailrace.cli.output import console
    from tailrace.figures.slo import parse_slo
    from tailrace.plan.report import data, draw, write
    from tailrace.plan.simulator import simulate
    from tailrace.plan.table import show
    from tailrace.traces import read_trace

    options = Options(**(given | {"baseline": tuple(given["baseline"])}))
    slo = parse_slo(options.slo)
    _check_files(options)
    rows = read_trace(Path(trace), "TRACE")
    outcome = simulate(rows, _setup(options, loaded))
    found = data(trace, options, outcome, slo)
    show(console(), found)
    if options.json:
        write(Path(options.json), found)
    if options.plot:
        draw(Path(options.plot), Path(trace).name, outcome)


def _check_files(options: Options) -> None:
    from tailrace.errors import ConfigError
    from tailrace.figures.chart import check_plot

    if options.plot:
        check_plot(Path(options.plot))
    for flag, name in (("--json", options.json), ("--plot", options.plot)):
        if name and not Path(name).absolute().parent.is_dir():
            raise ConfigError(f"{flag} {name}: there is no folder {Path(name).absolute().parent}", param=flag)


def _setup(options: Options, loaded: Loaded) -> Setup:
    from tailrace.plan.setup import setup

    return setup(options, loaded.config)


def _register() -> None:
    argument = typer.Argument(metavar="TRACE", help="CSV or JSONL: arrival, input, output, client, prefix hashes")
    trace = inspect.Parameter("trace", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=argument, annotation=str)
    loaded = inspect.Parameter("loaded", inspect.Parameter.KEYWORD_ONLY, annotation=Loaded)
    sign(run_simulation, [trace, *option_parameters(Options), loaded])


_register()
simulate_command = setting_flags(
    "engine.max_sequences", "engine.max_context", "engine.chunk_tokens", "engine.prefix_cache", "control"
)(run_simulation)
