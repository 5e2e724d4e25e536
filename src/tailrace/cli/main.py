"""The commands and their arguments. What they do lives in the module each imports when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from tailrace.cli import direct
from tailrace.cli.apart import Commands
from tailrace.cli.complete import model_names
from tailrace.cli.flags import loaded_settings, setting_flags
from tailrace.cli.output import user_errors
from tailrace.config import EngineConfig, Loaded

DEFAULT_MODEL = EngineConfig().model

# Plain help: drawing it with rich would cost half of the start time.
app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
config_app = typer.Typer(help="Look at settings.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(config_app, name="config")
keys_app = typer.Typer(help="Make API keys.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(keys_app, name="keys")

ModelArgument = Annotated[
    str | None,
    typer.Argument(metavar="[MODEL]", help="a name of the store, or a path", autocompletion=model_names),
]


ModelArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL]...",
        help="names of the store, or paths; the first is loaded at once",
        autocompletion=model_names,
    ),
]


def examples(*lines: str) -> str:
    """The end of a command's help, line for line."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def _say_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def whole(
    said: Annotated[
        bool,
        typer.Option("--version", help="as the command version", is_eager=True, callback=_say_version),
    ] = False,
) -> None:
    """Serve language models."""


def main() -> None:
    """Run the command that the words ask for."""
    with user_errors():
        app()


@app.command(
    epilog=examples(
        "tailrace serve",
        "tailrace serve my-model.gguf --port 9000 --kv-memory 4GiB",
        f"tailrace serve {DEFAULT_MODEL} minilm --keep-alive 10m",
        "tailrace serve --host 0.0.0.0 --api-key-file keys.txt",
        "curl http://127.0.0.1:8000/v1/models",
    )
)
@loaded_settings
def serve(model: ModelArguments = None, *, loaded: Loaded) -> None:
    """Serve models over HTTP, fetching them on first use."""
    if not direct.serve(loaded):
        raise typer.Exit(1)


@app.command(epilog=examples(f"tailrace pull {DEFAULT_MODEL}", "tailrace pull hf:ORG/REPO", "tailrace models"))
@setting_flags("engine.store")
def pull(
    name: Annotated[str, typer.Argument(help="what to fetch; see `tailrace models`", autocompletion=model_names)],
    *,
    loaded: Loaded,
) -> None:
    """Fetch a model into the store."""
    from tailrace.cli.models import pull_model

    pull_model(name, loaded.config.engine)


@app.command(epilog=examples("tailrace models", "tailrace models --store /srv/models"))
@setting_flags("engine.store")
def models(*, loaded: Loaded) -> None:
    """List the models that can be pulled and those that are here."""
    from tailrace.cli.models import list_models

    list_models(loaded.config.engine)


@app.command(
    epilog=examples(
        "tailrace chat",
        'tailrace chat my-model.gguf --system "Answer in one sentence." --temperature 0',
        "tailrace chat --url http://127.0.0.1:8000",
    )
)
@setting_flags("engine")
def chat(
    model: ModelArgument = None,
    *,
    url: Annotated[str, typer.Option(help="talk to this server instead, for example http://127.0.0.1:8000")] = "",
    key: Annotated[str, typer.Option(help="the server's API key")] = "",
    system: Annotated[str, typer.Option(help="system message")] = "",
    max_tokens: Annotated[int, typer.Option(help="longest answer in tokens", min=1)] = 512,
    temperature: Annotated[float, typer.Option(help="0 is greedy", min=0.0, max=2.0)] = 0.7,
    loaded: Loaded,
) -> None:
    """Talk to a model in the terminal, in this process or over HTTP."""
    from tailrace.cli.chat import ChatOptions, run_chat

    run_chat(loaded, ChatOptions(url, key, model or "", system, max_tokens, temperature))


@keys_app.command(
    "new",
    epilog=examples(
        "tailrace keys new ci",
        "tailrace keys new ops --scope inference --scope admin",
        "tailrace keys new ci --url http://gateway:8000 --key sk-... --tenant acme",
    ),
)
def keys_new(
    name: Annotated[str, typer.Argument(help="what logs and records call it")],
    scope: Annotated[list[str] | None, typer.Option(help="inference, admin; may be repeated")] = None,
    expires: Annotated[str, typer.Option(help="a date, for example 2027-01-31")] = "",
    *,
    url: Annotated[str, typer.Option(help="make it at this server, which lets it in at once")] = "",
    key: Annotated[str, typer.Option(help="an API key for that with the scope admin")] = "",
    tenant: Annotated[str, typer.Option(help="whose it is at that server")] = "default",
) -> None:
    """Make an API key: it is printed once, with the lines of its hash for the settings file, or made at a server."""
    from tailrace.cli.keys import Server, make_key_at, print_new_key

    if url:
        make_key_at(Server(url, key, tenant), name, scope or [], expires)
    else:
        print_new_key(name, scope or [], expires)


@config_app.command(epilog=examples("tailrace config check --config tailrace.toml"))
@loaded_settings
def check(model: ModelArgument = None, *, loaded: Loaded) -> None:
    """Read the settings as `serve` would, and name everything that is wrong with them. Status 2: something is."""
    from tailrace.cli.explain import print_checked

    print_checked(loaded)


@app.command(
    epilog=examples(
        "tailrace export ledger.csv --since 2027-01-01 --tenant acme",
        "tailrace export ledger.parquet --format parquet --database postgresql://user@host/tailrace",
    )
)
@setting_flags("data.data_folder", "data.database")
def export(
    file: Annotated[str, typer.Argument(help="where the rows go")],
    *,
    kind: Annotated[str, typer.Option("--format", help="csv, parquet")] = "csv",
    since: Annotated[str, typer.Option(help="only requests from this date or time on (UTC)")] = "",
    until: Annotated[str, typer.Option(help="only requests before this date or time (UTC)")] = "",
    tenant: Annotated[str, typer.Option(help="only this tenant's")] = "",
    loaded: Loaded,
) -> None:
    """Write the ledger to a file: a row for each request, and what was said of it."""
    from tailrace.cli.export import moment, run_export
    from tailrace.database.export import Wanted

    wanted = Wanted(moment(since, "--since"), moment(until, "--until"), tenant)
    run_export(loaded.config.data, file, kind, wanted)


@config_app.command(epilog=examples("tailrace config explain", "tailrace config explain --config tailrace.toml"))
@loaded_settings
def explain(model: ModelArgument = None, *, loaded: Loaded) -> None:
    """Print every setting with its value and where it came from."""
    from tailrace.cli.explain import print_settings

    print_settings(loaded)


@app.command(
    epilog=examples(
        "tailrace doctor",
        "tailrace doctor my-model.gguf --measure",
        "tailrace doctor --json | jq '.findings[] | select(.level != \"ok\")'",
    )
)
@loaded_settings
def doctor(
    model: ModelArgument = None,
    *,
    measure: Annotated[bool, typer.Option("--measure", help="load the model and time a few steps")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
    loaded: Loaded,
) -> None:
    """Look at this machine, the settings and a model; say what would go wrong or slowly. Status 1: serve would fail."""
    from tailrace.cli.doctor import run_doctor

    raise typer.Exit(run_doctor(loaded, measure=measure, as_json=as_json))


@app.command(epilog=examples("tailrace ps", "tailrace ps --url http://gateway:8000 --key sk-..."))
def ps(
    url: Annotated[str, typer.Option(help="the server")] = "http://127.0.0.1:8000",
    key: Annotated[str, typer.Option(help="an API key with the scope admin")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """List the models of a running server: which are loaded, how much memory they have, who uses them."""
    from tailrace.cli.ps import list_loaded

    list_loaded(url, key, as_json=as_json)


@app.command(epilog=examples("tailrace top", "tailrace top --url http://gateway:8000 --key sk-..."))
def top(
    url: Annotated[str, typer.Option(help="the server")] = "http://127.0.0.1:8000",
    key: Annotated[str, typer.Option(help="an API key with the scope admin")] = "",
    every: Annotated[float, typer.Option(help="seconds between looks", min=0.2, max=60.0)] = 1.0,
) -> None:
    """Watch a running server: queues, requests, KV memory, tails; cancel a request, change a tenant's weight."""
    from tailrace.cli.top.command import run_top

    run_top(url, key, every)


@app.command(
    epilog=examples(
        "tailrace report",
        "tailrace report --since 24h --by class,bucket",
        "tailrace report --since 2027-01-01 --until 2027-02-01 --by tenant,day --format html --output january.html",
        "tailrace report --tenant acme --format json | jq .total.money",
    )
)
@setting_flags("data.data_folder", "data.database")
def report(
    *,
    since: Annotated[str, typer.Option(help="a time ago, or a date")] = "7d",
    until: Annotated[str, typer.Option(help="the same; now by default")] = "",
    by: Annotated[str, typer.Option(help="some of tenant, class, bucket, model, day")] = "tenant,class,bucket",
    tenant: Annotated[str, typer.Option(help="only of this one")] = "",
    form: Annotated[str, typer.Option("--format", metavar="table|json|html", help="how to write it")] = "table",
    output: Annotated[str, typer.Option(metavar="FILE", help="write it there")] = "",
    loaded: Loaded,
) -> None:
    """Report on the requests in the ledger: outcomes, latencies, tokens, device time, money, success; worst first."""
    from tailrace.cli.report import Wanted, run_report

    run_report(loaded, Wanted(since, until, by, tenant, form, output))


@app.command(epilog=examples("tailrace version"))
def version() -> None:
    """Print the version, and the kernel variants this CPU can run."""
    from tailrace.cli.explain import print_version

    print_version()
