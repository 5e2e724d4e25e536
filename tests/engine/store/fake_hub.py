"""A Hugging Face hub on this machine: one repository, its list of files and the files, and things that go wrong."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 1000  # bytes from which on a file is announced with its SHA-256, like one in LFS


@dataclass
class FakeHub:
    """`files` by name. `refuse` answers a model's page with (status, error code); `lie` replaces what is announced
    about a file; `seen` lists (path, range) of every request for a file."""

    files: dict[str, bytes]
    repo: str = "org/tiny"
    revisions: tuple[str, ...] = ("main", COMMIT)
    refuse: tuple[int, str] | None = None
    lie: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    commit: str = COMMIT
    endpoint: str = ""
    seen: list[tuple[str, str | None]] = field(default_factory=list)

    def listing(self) -> dict[str, Any]:
        return {"id": self.repo, "modelId": self.repo, "sha": self.commit, "siblings": [*map(self._entry, self.files)]}

    def _entry(self, name: str) -> dict[str, Any]:
        content = self.files[name]
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entry: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": blob}
        if len(content) >= LARGE:
            entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        return entry | dict(self.lie.get(name, {}))


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            page = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path)
            if page is not None:
                self._page(page[1], page[2])
            else:
                self._file(path)

        def _page(self, repo: str, revision: str | None) -> None:
            if hub.refuse is not None:
                self._fail(*hub.refuse)
            elif repo != hub.repo:
                self._fail(404, "RepoNotFound")
            elif revision is not None and revision not in hub.revisions:
                self._fail(404, "RevisionNotFound")
            else:
                self._answer(200, json.dumps(hub.listing()).encode(), {"Content-Type": "application/json"})

        def _file(self, path: str) -> None:
            prefix = f"/{hub.repo}/resolve/{hub.commit}/"
            asked = self.headers.get("Range")
            hub.seen.append((path.removeprefix(prefix), asked))
            content = hub.files.get(path.removeprefix(prefix))
            if content is None or not path.startswith(prefix):
                self._fail(404, "EntryNotFound")
            elif asked is None:
                self._answer(200, content, {})
            else:
                start = int(asked.removeprefix("bytes=").rstrip("-"))
                extent = f"bytes {start}-{len(content) - 1}/{len(content)}"
                self._answer(206, content[start:], {"Content-Range": extent})

        def _fail(self, status: int, code: str) -> None:
            self._answer(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

        def _answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | dict(headers)).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
