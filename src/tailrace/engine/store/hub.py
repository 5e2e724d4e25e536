"""Fetching files from the Hugging Face hub: one commit, only the files that are needed, resumed and verified.

`huggingface_hub` speaks to the server (address, login, redirects, proxies are its affair). A file grows under a
temporary name, which a later pull continues, and gets its own after its checksum: SHA-256 of large files, git's SHA-1
of small ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from tailrace.engine.store.hub_name import HubFile, HubName
from tailrace.errors import StoreError

UNFINISHED = ".unfinished"
CHUNK = 1 << 20
_COMMIT = re.compile(r"[0-9a-f]{40,64}")  # becomes a folder's name


class HubCommit:
    """What a name means on the hub now: `sha` of the commit, its `files` by name. Everything raises StoreError."""

    def __init__(self, name: HubName, endpoint: str | None = None) -> None:
        try:
            import huggingface_hub.errors  # noqa: PLC0415 - half a second, for those who pull from the hub only
        except ImportError as error:
            raise StoreError("Pulling from the hub needs huggingface_hub: pip install huggingface_hub") from error
        self._library = huggingface_hub
        self._name = name
        self._endpoint = endpoint
        with self._typed_errors():
            hub = self._library.HfApi(endpoint=endpoint)
            info = hub.model_info(name.repo, revision=name.revision or None, files_metadata=True)
        if not info.sha or not _COMMIT.fullmatch(info.sha):
            raise StoreError(f"The hub names no commit of {name} (but {info.sha!r:.50}); try again later.")
        self.sha: str = info.sha
        self.files: dict[str, HubFile] = {}
        for entry in info.siblings or ():
            sha256 = entry.lfs.sha256 if entry.lfs else None
            self.files[entry.rfilename] = HubFile(entry.rfilename, entry.size or 0, sha256, entry.blob_id)

    def fetch(self, file: HubFile, target: Path, progress: Callable[[int], None]) -> None:
        """Put a file at `target`, verified; `progress` hears how many of its bytes are here."""
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + UNFINISHED)
        with partial.open("ab") as grown:  # made where it is not yet there
            have = grown.tell()
        if have > file.size:
            partial.write_bytes(b"")
            have = 0
        with partial.open("r+b") as out:
            out.seek(have)
            if have < file.size:
                self._download(file, _Heard(out, progress), have)
        _verify(partial, file)
        partial.replace(target)

    def _download(self, file: HubFile, out: Any, have: int) -> None:
        from huggingface_hub.file_download import http_get  # noqa: PLC0415
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # noqa: PLC0415

        url = self._library.hf_hub_url(self._name.repo, file.name, revision=self.sha, endpoint=self._endpoint)
        # identity: the length and the place to go on from are those of the file, not of a compressed one.
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        with self._typed_errors():
            http_get(url, out, resume_size=have, headers=headers, expected_size=file.size, tqdm_class=_NoBar)

    @contextlib.contextmanager
    def _typed_errors(self) -> Iterator[None]:
        errors, name = self._library.errors, self._name
        where = self._endpoint or "huggingface.co"
        try:
            yield
        except errors.GatedRepoError as error:
            raise StoreError(
                f"{name.repo} is gated: accept its terms on its page at {where}, then log in with `hf auth login` (or "
                "set HF_TOKEN) and pull again.",
                code="gated",
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise StoreError(
                f"The hub has no model {name.repo}, or it is private: then log in with `hf auth login` (or HF_TOKEN).",
                code="not_found",
            ) from error
        except errors.RevisionNotFoundError as error:
            raise StoreError(f"{name.repo} has no revision {name.revision!r}.", code="not_found") from error
        except errors.HFValidationError as error:
            raise StoreError(f"{name.repo!r} is not a name that the hub can have: {error}") from error
        except errors.HfHubHTTPError as error:
            raise StoreError(f"The hub at {where} refused {name}: {error}", code="hub_error") from error
        except (errors.HTTPError, ConnectionError, TimeoutError) as error:
            raise StoreError(
                f"The hub at {where} cannot be reached ({error or type(error).__name__}). What was fetched is kept: "
                "pull again when the network is back.",
                code="offline",
            ) from error
        except OSError as error:
            if error.errno is not None:  # the disk's
                raise
            raise StoreError(f"{name} did not come whole: {error}", code="hub_error") from error
        except ValueError as error:
            raise StoreError(f"The hub library cannot fetch {name}: {error}") from error


class _Heard:
    """A file that tells how much it holds."""

    def __init__(self, file: IO[bytes], heard: Callable[[int], None]) -> None:
        self._file = file
        self._heard = heard

    def write(self, data: bytes) -> int:
        count = self._file.write(data)
        self._heard(self._file.tell())
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _NoBar:
    """In the place of the library's progress bar: progress is told once, by this program's own."""

    def __init__(self, **options: Any) -> None:
        pass

    def __enter__(self) -> _NoBar:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, count: int = 1) -> None:
        pass


def _verify(path: Path, file: HubFile) -> None:
    """Raise StoreError, and drop the file, when its content is not what the hub announced."""
    size = path.stat().st_size
    if size != file.size:
        raise StoreError(f"{file.name} has {size} of {file.size} bytes. Pull again to go on.", code="hub_error")
    if file.sha256:
        digest, expected = hashlib.sha256(), file.sha256
    elif file.blob:
        digest, expected = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False), file.blob
    else:
        raise StoreError(f"The hub announces no checksum of {file.name}, so it cannot be verified.")
    with path.open("rb") as content:
        while chunk := content.read(CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != expected:
        path.unlink()
        raise StoreError(
            f"{file.name} has checksum {digest.hexdigest()}, the hub announces {expected}: it was damaged on its way. "
            "Pull again."
        )
