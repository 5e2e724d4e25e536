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
    from tailrace.cli.output import check_files, console
    from tailrace.figures.results import write
    from tailrace.figures.slo import parse_slo
    from tailrace.plan.report import data, draw
    from tailrace.plan.simulator import simulate
    from tailrace.plan.table import show
    from tailrace.traces import read_trace

    options = Options(**(given | {"baseline": tuple(given["baseline"])}))
    slo = parse_slo(options.slo)
    check_files(options.json, options.plot)
    rows = read_trace(Path(trace), "TRACE")
    outcome = simulate(rows, _setup(options, loaded))
    found = data(trace, options, outcome, slo)
    show(console(), found)
    if options.json:
        write(Path(options.json), found)
    if options.plot:
        draw(Path(options.plot), Path(trace).name, outcome)


def _setup(options: Options, loaded: Loaded) -> Setup:
    from tailrace.plan.setup import setup

    return setup(options, loaded.config)


def _register() -> None:
    argument = typer.Argument(metavar="TRACE", help="CSV or JSONL: arrival, input, output, client, prefix hashes")
    trace = inspect.Parameter("trace", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=argument, annotation=str)
    loaded = inspect.Parameter("loaded", inspect.Parameter.KEYWORD_ONLY, annotation=Loaded)
    sign(run_simulation, [trace, *option_parameters(Options), loaded])


_register()
simulate_app = typer.Typer(rich_markup_mode=None, add_completion=False)
simulate_app.command("simulate", epilog=EXAMPLES)(
    setting_flags(
        "engine.max_sequences", "engine.max_context", "engine.chunk_tokens", "engine.prefix_cache", "control"
    )(run_simulation)
)
