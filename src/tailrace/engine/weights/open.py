"""From a path to an open model, whatever its format."""

from __future__ import annotations

from pathlib import Path

from tailrace.engine.weights.checkpoint import Checkpoint
from tailrace.engine.weights.file_names import is_model_folder
from tailrace.engine.weights.safetensors_folder import SafetensorsFolder
from tailrace.engine.weights.split import open_gguf
from tailrace.errors import ModelFileError


def open_checkpoint(path: str | Path) -> Checkpoint:
    """A GGUF file, any part of one that is split, or a folder with config.json and safetensors files.

    Raises ModelFileError that says what is missing, damaged or unknown.
    """
    path = Path(path)
    if not path.is_dir():
        if path.suffix == ".safetensors":
            raise ModelFileError(
                f"{path} has weights only; give the folder that also has its config.json: {path.parent}"
            )
        return open_gguf(path)
    if not is_model_folder(path):
        raise ModelFileError(f"{path} is a folder without config.json, so it is not a model. Name a GGUF file.")
    return SafetensorsFolder(path)
