"""`tailrace bench` and `tailrace bench compare`: flags from the fields of Options, results to terminal and files."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.bench.options import Options
from tailrace.cli.flags import option_parameters, sign
from tailrace.cli.output import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from tailrace.bench.report import Report
    from tailrace.bench.run import Bench

EXIT_NO_ANSWER = 1
EXAMPLES = """Measure an OpenAI-compatible server under load.

\b
tailrace bench --concurrency 8 --requests 200
tailrace bench --rate 4 --duration 60s --input lognormal:512,0.8 --output uniform:16-128
tailrace bench --concurrency 1 --sweep --slo ttft=500ms,tpot=50ms --plot sweep.html
tailrace bench --trace trace.csv --length-scale 0.0625 --speedup 2 --json result.json
tailrace bench compare before.json after.json
"""

bench_app = typer.Typer(rich_markup_mode=None, add_completion=False)


def run_benchmark(context: typer.Context, **given: Any) -> None:
    if context.invoked_subcommand is None:
        _measure(Options(**(given | {"mix": tuple(given["mix"])})))


@bench_app.command(epilog="\b\nExamples:\n  tailrace bench compare before.json after.json")
def compare(
    a: Annotated[Path, typer.Argument(metavar="A.json", help="result of --json, the one to compare with")],
    b: Annotated[Path, typer.Argument(metavar="B.json", help="result of --json")],
) -> None:
    """Show the ratios of two results, and which differences are more than noise."""
    from tailrace.bench.compare import show_comparison
    from tailrace.bench.report import read
    from tailrace.cli.output import console

    show_comparison(console(), read(a), read(b))


def _measure(options: Options) -> None:
    import asyncio

    from tailrace.bench.charts import draw
    from tailrace.bench.table import show
    from tailrace.cli.output import check_files, console
    from tailrace.figures.results import write

    check_files(options.json, options.plot)
    report = asyncio.run(_run(options))
    data = report.data()
    show(console(), data)
    if options.json:
        write(Path(options.json), data)
    if options.plot:
        draw(Path(options.plot), data)
    if report.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if not any(run.summary["answered"] for run in report.runs):
        raise typer.Exit(EXIT_NO_ANSWER)


async def _run(options: Options) -> Report:
    from tailrace.bench.pace import RealPace
    from tailrace.bench.progress import Bars
    from tailrace.bench.run import Bench
    from tailrace.cli.output import console
    from tailrace.clock import SystemClock

    clock = SystemClock()
    with Bars(console(stderr=True)) as bars:
        bench = Bench(options, RealPace(clock), bars, started=clock.wall())
        _stop_on_interrupt(bench)
        return await bench.run()


def _stop_on_interrupt(bench: Bench) -> None:
    """Ctrl-C ends the run with what was measured; a second one ends the program."""
    import asyncio
    import signal

    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        bench.stop()

    loop.add_signal_handler(signal.SIGINT, stop)


def _register() -> None:
    """A flag for each field of Options."""
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    sign(run_benchmark, [context, *option_parameters(Options)])
    bench_app.callback(invoke_without_command=True, help=EXAMPLES)(run_benchmark)


_register()
