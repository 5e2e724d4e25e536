"""What the shell offers for a MODEL: names of the store, and paths of model files."""

from __future__ import annotations

from pathlib import Path


def model_names(incomplete: str) -> list[str]:
    """Names and paths that begin like `incomplete`. Never an error: the shell would show it in the middle of a line."""
    from tailrace.config import Config, store_root
    from tailrace.engine.store.store import Store

    names = [model.name for model in Store(store_root(Config().engine)).models()]
    return [name for name in names if name.startswith(incomplete)] + _paths(incomplete)


def _paths(incomplete: str) -> list[str]:
    """Folders (with a slash behind) and .gguf files."""
    folder, _, begin = incomplete.rpartition("/")
    try:
        entries = sorted(Path(f"{folder}/" if incomplete.startswith("/") else folder or ".").expanduser().iterdir())
    except OSError:
        return []
    prefix = f"{folder}/" if "/" in incomplete else ""
    matching = [entry for entry in entries if entry.name.startswith(begin) and not entry.name.startswith(".")]
    folders = [f"{prefix}{entry.name}/" for entry in matching if entry.is_dir()]
    return folders + [prefix + entry.name for entry in matching if entry.suffix == ".gguf" and entry.is_file()]
