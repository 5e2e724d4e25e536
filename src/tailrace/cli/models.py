"""`tailrace pull` and `tailrace models`."""

from __future__ import annotations

from tailrace.cli.output import console
from tailrace.config import EngineConfig, store_root
from tailrace.engine.store.store import Store
from tailrace.terminal import byte_bars
from tailrace.units import human_bytes

FORMS = (
    "Wherever a name does, these work too: hf:ORG/REPO, hf:ORG/REPO:FILE and hf:ORG/REPO@REVISION[:FILE] of the "
    "Hugging Face hub, the path of a .gguf file, and that of a folder with config.json, tokenizer.json and safetensors."
)


def pull_model(name: str, config: EngineConfig) -> None:
    with byte_bars() as report:
        path = Store(store_root(config)).pull(name, report)
    console().print(f"{name} is at {path}", markup=False)


def list_models(config: EngineConfig) -> None:
    """A table of the models that have a name."""
    from rich.table import Table

    store = Store(store_root(config))
    table = Table("model", "size", "state", "license", "", box=None, pad_edge=False)
    for model in store.models():
        state = "[green]here[/]" if model.pulled else "not pulled"
        table.add_row(model.name, human_bytes(model.size), state, model.license, model.summary)
    console().print(table)
    console().print(f"The store is {store.root}. {FORMS}", style="dim", markup=False)
