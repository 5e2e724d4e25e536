"""`tailrace pull` and `tailrace models`, and finding the file that `serve` and `chat` run."""

from __future__ import annotations

import sys
from pathlib import Path

from tailrace.cli.output import byte_bars, console, human_bytes
from tailrace.config import EngineConfig, store_root
from tailrace.engine.store.store import Store
from tailrace.errors import StoreError


def pull_model(name: str, config: EngineConfig) -> None:
    console().print(f"{name} is at {_pull(Store(store_root(config)), name)}", markup=False)


def find_model(config: EngineConfig) -> Path:
    """The file of the configured model, fetched first when the store does not have it yet. Raises StoreError."""
    store = Store(store_root(config))
    try:
        return store.resolve(config.model)
    except StoreError as error:
        if error.code != "not_pulled":
            raise
    print(f"{config.model} is not in the store yet; fetching it", file=sys.stderr)
    return _pull(store, config.model)


def list_models(config: EngineConfig) -> None:
    """A table of the models that have a name."""
    from rich.table import Table

    store = Store(store_root(config))
    table = Table("model", "size", "state", "license", "", box=None, pad_edge=False)
    for model in store.models():
        state = "[green]here[/]" if model.pulled else "not pulled"
        table.add_row(model.name, human_bytes(model.size), state, model.license, model.summary)
    console().print(table)
    console().print(f"[dim]The store is {store.root}. The path of a .gguf file works wherever a name does.[/]")


def _pull(store: Store, name: str) -> Path:
    with byte_bars() as report:
        return store.pull(name, report)
