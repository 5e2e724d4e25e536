"""Names of models on the Hugging Face hub, and which of a repository's files such a name means.

    hf:ORG/REPO            a folder with config.json and safetensors, or the only GGUF model of the repository
    hf:ORG/REPO:FILE       one GGUF file, or the part of its name that tells it from the others ("Q4_K_M")
    hf:ORG/REPO@REVISION   a branch, tag or commit; `:FILE` may follow

Only names: nothing here touches the network.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from tailrace.engine.weights.file_names import (
    CONFIG,
    INDEX,
    MORE_TEMPLATES,
    PART_NAME,
    TEMPLATE,
    TEMPLATE_JSON,
    TOKENIZER_FILES,
    WEIGHTS,
    part_paths,
)
from tailrace.errors import StoreError
from tailrace.frozen import frozen

PREFIX = "hf:"
MAX_LISTED = 20  # files that an error message names
_NAME = re.compile(r"hf:(?P<repo>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>[\w./-]+))?(?::(?P<file>[^:]+))?", re.ASCII)
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_MORE_TEMPLATES = re.compile(rf"{MORE_TEMPLATES}/[^/]+\.jinja")
_PROJECTOR = "mmproj"  # GGUF files that hold an image encoder beside the model


@frozen
class HubName:
    """`file` "": whatever the repository holds. `revision` "": its main branch."""

    repo: str
    revision: str = ""
    file: str = ""

    def __str__(self) -> str:
        return PREFIX + self.repo + (f"@{self.revision}" if self.revision else "") + (f":{self.file}" * bool(self.file))


@frozen
class HubFile:
    """`sha256` of a large file; others have git's SHA-1 of them only. `size` in bytes."""

    name: str
    size: int
    sha256: str | None
    blob: str | None


@frozen
class Choice:
    """`files` to fetch; `main` is the GGUF file (its first part) or "" for the folder itself."""

    files: tuple[HubFile, ...]
    main: str


def parse_name(text: str) -> HubName:
    """Raises StoreError."""
    match = _NAME.fullmatch(text)
    if match is None or ".." in text:
        raise StoreError(f"{text!r} is not a model of the hub; write hf:ORG/REPO, hf:ORG/REPO:FILE or hf:ORG/REPO@REV.")
    return HubName(match["repo"], match["revision"] or "", match["file"] or "")


def choose(name: HubName, files: Mapping[str, HubFile]) -> Choice:
    """What has to be fetched for a name. Raises StoreError that lists what there is."""
    usable = {file: entry for file, entry in files.items() if _is_inside(file)}
    models = _gguf_models(usable)
    if name.file:
        return _gguf(name, usable, _matching(name, usable, models))
    if CONFIG in usable and any(file.endswith(".safetensors") and "/" not in file for file in usable):
        return _folder(usable)
    if len(models) == 1:
        return _gguf(name, usable, models[0])
    if models:
        raise StoreError(f"{name} holds several models; add one as {name}:FILE. {_listed(models, usable)}")
    raise StoreError(
        f"{name} holds neither GGUF files nor {CONFIG} with safetensors. {_listed(sorted(usable), usable)}"
    )


def _matching(name: HubName, files: Mapping[str, HubFile], models: Sequence[str]) -> str:
    if name.file in files and name.file.endswith(".gguf"):
        return str(PurePosixPath(name.file).with_name(part_paths(Path(name.file))[0].name))
    found = [model for model in models if name.file.lower() in model.lower()]
    if len(found) == 1:
        return found[0]
    if found:
        raise StoreError(f"{name.file!r} fits several files of {name.repo}. {_listed(found, files)}")
    raise StoreError(f"{name.repo} has no GGUF file {name.file!r}. {_listed(models or sorted(files), files)}")


def _gguf(name: HubName, files: Mapping[str, HubFile], main: str) -> Choice:
    parts = [str(PurePosixPath(main).with_name(part.name)) for part in part_paths(Path(main))]
    missing = [part for part in parts if part not in files]
    if missing:
        raise StoreError(
            f"{name.repo} lacks {len(missing)} of the {len(parts)} parts of this model, such as {missing[0]}."
        )
    return Choice(tuple(files[part] for part in parts), main)


def _folder(files: Mapping[str, HubFile]) -> Choice:
    known = (CONFIG, "generation_config.json", *TOKENIZER_FILES, TEMPLATE, TEMPLATE_JSON)
    settings = [name for name in known if name in files]
    settings += sorted(file for file in files if _MORE_TEMPLATES.fullmatch(file))
    if WEIGHTS in files:
        weights = [WEIGHTS]
    elif INDEX in files:
        weights = [INDEX, *sorted(file for file in files if _SHARD.fullmatch(file))]
    else:
        weights = sorted(file for file in files if file.endswith(".safetensors") and "/" not in file)
    return Choice(tuple(files[file] for file in (*settings, *weights)), "")


def _gguf_models(files: Mapping[str, HubFile]) -> list[str]:
    """GGUF files; of one in parts, the first."""
    found = [file for file in sorted(files) if file.endswith(".gguf") and _PROJECTOR not in file.lower()]
    return [file for file in found if _is_first(PurePosixPath(file).name)]


def _is_first(name: str) -> bool:
    match = PART_NAME.fullmatch(name)
    return match is None or int(match["number"]) == 1


def _is_inside(file: str) -> bool:
    """A path that stays in its folder on any system."""
    parts = PurePosixPath(file).parts
    return bool(parts) and not file.startswith("/") and ".." not in parts and not set(file) & set('\\:\0"*?<>|')


def _listed(names: Sequence[str], files: Mapping[str, HubFile]) -> str:
    lines = [f"{name} ({files[name].size / 1e6:.0f} MB)" for name in names[:MAX_LISTED]]
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return f"There are: {', '.join(lines)}{more}." if lines else "It has no files."
