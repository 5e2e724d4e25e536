"""A model as a folder: `config.json`, a tokenizer, and safetensors files, one or several with an index.

Owns which files belong to the model and how their tensors and settings look in GGUF's terms (`models.hf` has the
names). Refuses weights in pickle files: reading those can run code.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tailrace.engine.models.hf import ROPE_FACTORS, FolderConfig
from tailrace.engine.models.hf_bert import ARCHITECTURE as BERT
from tailrace.engine.models.hf_bert import BertConfig
from tailrace.engine.weights.checkpoint import TensorInfo, TensorType, read_json
from tailrace.engine.weights.dequant import PLAIN, dequantize
from tailrace.engine.weights.file_names import (
    CONFIG,
    INDEX,
    MORE_TEMPLATES,
    POOLING,
    TEMPLATE,
    TEMPLATE_JSON,
    TOKENIZER_FILES,
    WEIGHTS,
)
from tailrace.engine.weights.safetensors import SafetensorsFile
from tailrace.errors import ModelFileError
from tailrace.text.folder import token_text
from tailrace.text.tokenizer import Tokenizer

MAX_SETTINGS = 1 << 20  # bytes of config.json and templates
MAX_TABLE = 1 << 24  # bytes of tables that grow with the model: the index, tokenizer_config.json
_F32 = TensorType("F32", 1, 4)
_POOLINGS = {"mean_tokens": 1, "cls_token": 2, "lasttoken": 3}

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]


class SafetensorsFolder:
    """An open folder. Raises ModelFileError when something is missing, damaged or cannot be run."""

    paired_rope = False

    def __init__(self, path: Path) -> None:
        self.path = path
        config = _config(read_json(path / CONFIG, MAX_SETTINGS), str(path / CONFIG))
        self._shards = _open_shards(path)
        settings = [path / name for name in (CONFIG, *TOKENIZER_FILES) if (path / name).is_file()]
        self.files = (*settings, *(shard.path for shard in self._shards))
        self._home: dict[str, SafetensorsFile] = {}
        self._made: dict[str, F32] = {}  # tensors that the folder has as numbers of its configuration
        self._from_one: set[str] = set()
        self.tensors = dict(self._named(config))
        self.metadata: dict[str, Any] = {"general.name": path.absolute().name, **config.metadata(), **_texts(path)}
        self.metadata |= _pooling(path, str(self.metadata["general.architecture"]))

    def raw(self, name: str) -> U8:
        """The stored bytes as uint8 [rows, bytes per row], read-only; a vector is one row."""
        if name in self._made:
            return self._made[name].view(np.uint8)[None]
        shard, info = self._home[name], self.tensors[name]
        raw = shard.raw(info.name)
        if name not in self._from_one:
            return raw
        return (dequantize(raw, shard.tensors[info.name].type.name) + np.float32(1)).view(np.uint8)

    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_hf(self.path)

    def _named(self, config: FolderConfig | BertConfig) -> Iterator[tuple[str, TensorInfo]]:
        for shard in self._shards:
            for info in shard.tensors.values():
                name = config.name_of(info.name)
                if name is None:
                    continue
                if name in self._home:
                    raise ModelFileError(f"{shard.path}: tensor {info.name!r} is in another file of the folder too.")
                self._home[name] = shard
                if config.is_from_one(name) and info.type.name in PLAIN:
                    self._from_one.add(name)
                    info = TensorInfo(info.name, info.shape, _F32, info.offset, info.nbytes)  # noqa: PLW2901
                yield name, info
        factors = config.rope_factors()
        if factors is not None:
            self._made[ROPE_FACTORS] = factors
            yield ROPE_FACTORS, TensorInfo(ROPE_FACTORS, factors.shape, _F32, 0, factors.nbytes)


def _config(values: dict[str, Any], where: str) -> FolderConfig | BertConfig:
    return BertConfig(values, where) if values.get("architectures") == [BERT] else FolderConfig(values, where)


def _pooling(folder: Path, architecture: str) -> dict[str, int]:
    """How a text's vector is made, where the folder says so as sentence-transformers writes it."""
    where = folder / POOLING
    values = read_json(where, MAX_SETTINGS) if where.is_file() else {}
    chosen = [kind for mode, kind in _POOLINGS.items() if values.get(f"pooling_mode_{mode}")]
    others = [key for key, on in values.items() if on is True and key.startswith("pooling_mode_")]
    if len(others) > 1 or (others and not chosen):
        raise ModelFileError(
            f"{where}: {', '.join(sorted(others))} is asked for; one of {', '.join(_POOLINGS)} can be."
        )
    return {f"{architecture}.pooling_type": chosen[0]} if chosen else {}


def _open_shards(folder: Path) -> list[SafetensorsFile]:
    if not (folder / INDEX).is_file():
        return [SafetensorsFile(_single(folder))]
    where = folder / INDEX
    table = read_json(where, MAX_TABLE).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
        raise ModelFileError(f"{where} is damaged: its weight_map is not a table of file names. Fetch it again.")
    names = sorted(set(table.values()))
    odd = [name for name in names if Path(name).name != name or not name.endswith(".safetensors")]
    if odd or not names:
        raise ModelFileError(f"{where} names {odd[0]!r:.80} as a file." if odd else f"{where} names no files.")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ModelFileError(
            f"{len(missing)} of the {len(names)} files of this model are missing in {folder}: {', '.join(missing[:5])}."
            " Fetch them."
        )
    shards = {name: SafetensorsFile(folder / name) for name in names}
    for tensor, name in table.items():
        if tensor not in shards[name].tensors:
            raise ModelFileError(f"{folder / name}: tensor {tensor!r:.80} is missing; {INDEX} says that it is there.")
    return list(shards.values())


def _single(folder: Path) -> Path:
    """The folder's only file of weights."""
    if (folder / WEIGHTS).is_file():
        return folder / WEIGHTS
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if len(found) == 1:
        return folder / found[0]
    pickles = any(folder.glob("*.bin")) or any(folder.glob("*.pt*"))
    reason = f"it has several: {', '.join(found[:5])}" if found else "it has no safetensors file"
    hint = " Its weights are in pickle files, which are not read because they can run code." if pickles else ""
    raise ModelFileError(f"{folder} has neither {WEIGHTS} nor {INDEX}; {reason}.{hint} Fetch or convert the weights.")


def _texts(folder: Path) -> dict[str, str]:
    """The chat template and how the start and end token are written."""
    settings = read_json(folder / TOKENIZER_FILES[1], MAX_TABLE) if (folder / TOKENIZER_FILES[1]).is_file() else {}
    found = {f"tokenizer.{key}": token_text(settings.get(key)) for key in ("bos_token", "eos_token")}
    templates = _templates(folder, settings)
    found["tokenizer.chat_template"] = templates.get("default")
    found["tokenizer.chat_template.tool_use"] = templates.get("tool_use")
    return {key: text for key, text in found.items() if text is not None}


def _templates(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    """By name. A template's own file goes before tokenizer_config.json, and that before chat_template.json."""
    older = read_json(folder / TEMPLATE_JSON, MAX_SETTINGS) if (folder / TEMPLATE_JSON).is_file() else {}
    files = {path.stem: path for path in sorted((folder / MORE_TEMPLATES).glob("*.jinja"))}
    if (folder / TEMPLATE).is_file():
        files["default"] = folder / TEMPLATE
    return {
        **_listed(older.get("chat_template")),
        **_listed(settings.get("chat_template")),
        **{name: _template(path) for name, path in files.items()},
    }


def _listed(found: object) -> dict[str, str]:
    """By name: of one template, of a list with names, or of a table."""
    if isinstance(found, dict):
        pairs = list(found.items())
    else:
        entries = found if isinstance(found, list) else [{"name": "default", "template": found}]
        pairs = [(entry.get("name"), entry.get("template")) for entry in entries if isinstance(entry, dict)]
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}


def _template(path: Path) -> str:
    if path.stat().st_size > MAX_SETTINGS:
        raise ModelFileError(f"{path} has more than {MAX_SETTINGS} bytes.")
    return path.read_text("utf-8", "replace")
