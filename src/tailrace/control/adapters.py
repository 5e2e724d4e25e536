"""Which adapters are served, each under a name of its own and on top of one model. Loads and unloads them.

While the server runs they may come from one folder only, which whoever started it has named. One that is unloaded is
not found any more at once; those that already have it finish with it, and unloading ends when they have. What was
cached with an adapter is found again by its own requests only: every loading has a key.
"""

from __future__ import annotations

import asyncio
import re
from itertools import count
from pathlib import Path

from tailrace.control.models import Models, Served, in_thread
from tailrace.errors import ConfigError, Forbidden, InvalidRequest, ModelFileError, NotFound, Unsupported
from tailrace.observe.timeline import Timeline
from tailrace.types import KEY_BYTES, Adapter

MAX_ADAPTERS = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")


class Adapters:
    """`folder`: whence they may be loaded at run time; empty: from nowhere."""

    def __init__(self, models: Models, folder: str) -> None:
        self._models = models
        self._folder = folder
        self._keys = count(1)
        self._turn = asyncio.Lock()  # of loading

    def at_start(self, wanted: tuple[str, ...]) -> None:
        """Load NAME=PATH, each on top of the first model, which is loaded. Raises ConfigError, ModelFileError."""
        base = next(iter(self._models))
        for text in wanted:
            name, equals, path = text.partition("=")
            if not (equals and path):
                raise ConfigError(f"lora is {text!r}: write NAME=PATH", param="api.loras")
            try:
                self._check_name(name)
                self._add(name, base, self._read(base, Path(path).expanduser()))
            except InvalidRequest as error:
                raise ConfigError(f"lora {text!r}: {error.message}", param="api.loras") from None

    async def load(self, name: str, path: str, base: str | None, timeline: Timeline) -> None:
        """On top of the model named `base`, the first where none is. Raises Forbidden, InvalidRequest, NotFound,
        ModelNotFound, Unavailable."""
        folder = self._allowed(path)
        models = self._models
        served = models.model(base)
        async with self._turn:
            self._check_name(name)
            await models.hold(served, timeline)
            try:
                self._add(name, served, await in_thread(lambda: self._read(served, folder)))
            except ModelFileError as error:
                raise InvalidRequest(error.message, param="lora_path", code="adapter_refused") from None
            finally:
                models.let_go(served)

    async def unload(self, name: str) -> None:
        """Returns when nobody has it any more. Raises Forbidden, NotFound."""
        self._check_on()
        if name not in self._models.adapted:
            raise NotFound(f"No adapter {name[:128]!a} is loaded", param="lora_name")
        await self._models.adapted.pop(name).free()

    def _add(self, name: str, base: Served, weights: object) -> None:
        adapter = Adapter(name, next(self._keys).to_bytes(KEY_BYTES), weights, base.name)
        self._models.adapted[name] = Served(name, self._models.wall(), base, adapter)

    def _read(self, base: Served, folder: Path) -> object:
        read = base.model.read_adapter
        if read is None:
            raise Unsupported(f"The model {base.name} takes no adapters", param="base_model_name")
        return read(folder)

    def _check_name(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"lora_name is {name[:128]!a}; it begins with a letter or digit and has up to 128 of letters, digits "
                "and . _ : / -",
                param="lora_name",
            )
        if self._models.has(name):
            raise InvalidRequest(f"{name} is served already; unload it first, or take another name", param="lora_name")
        if len(self._models.adapted) >= MAX_ADAPTERS:
            raise InvalidRequest(f"{MAX_ADAPTERS} adapters are loaded; unload one first", param="lora_name")

    def _check_on(self) -> None:
        if not self._folder:
            raise Forbidden(
                "Adapters are not loaded or unloaded while this server runs; start it with --lora-folder FOLDER to "
                "allow it from there",
                code="adapters_fixed",
            )

    def _allowed(self, path: str) -> Path:
        """The folder of an adapter, links followed, with all that is read of it, inside the one that is allowed."""
        self._check_on()
        if "\0" in path:
            raise InvalidRequest("lora_path must not hold a NUL", param="lora_path")
        allowed = Path(self._folder).expanduser().resolve()
        folder = (allowed / path).resolve()
        files = [folder, *((folder / name).resolve() for name in ("adapter_config.json", "adapter_model.safetensors"))]
        if not all(each.is_relative_to(allowed) for each in files):
            raise Forbidden("lora_path is outside the folder that adapters may be loaded from", param="lora_path")
        if not folder.is_dir():
            raise NotFound(f"There is no folder {path[:200]!a} among the adapters", param="lora_path")
        return folder
