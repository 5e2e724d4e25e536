"""A forwarder that lets suites written for another server's names reach ours: a path and a model for each of theirs.

llama-server answers whatever model a request names, and has OpenAI's paths without `/v1` too. We refuse unknown models
and have one path each, on purpose; the forwarder takes these two differences away, so that a suite says something
about the rest. Everything else goes through as it is, streams piece by piece; a 5xx is printed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

HOP_BY_HOP = ("connection", "transfer-encoding", "content-length", "keep-alive", "host")
PREFIXED = ("/chat/completions", "/embeddings", "/responses", "/models")


@contextmanager
def forwarding(base: str, generator: str, embedder: str) -> Iterator[int]:
    """The port of a forwarder to `base`; vectors are asked of `embedder`, the rest of `generator`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"  # an answer ends where the connection does

        def handle_any(self) -> None:
            path = ("/v1" + self.path) if self.path.startswith(PREFIXED) else self.path
            vectors = any(word in path for word in ("embed", "rerank", "score"))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            _forward(self, base, path, _with_model(body, embedder if vectors else generator))

        do_GET = do_POST = do_DELETE = do_OPTIONS = handle_any

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _with_model(body: bytes, model: str) -> bytes:
    try:
        fields = json.loads(body)
    except ValueError:
        return body
    return json.dumps({**fields, "model": model}).encode() if isinstance(fields, dict) else body


def _forward(handler: BaseHTTPRequestHandler, base: str, path: str, body: bytes) -> None:
    connection = HTTPConnection(urlsplit(base).netloc)
    headers = {name: value for name, value in handler.headers.items() if name.lower() not in HOP_BY_HOP}
    try:
        connection.request(handler.command, path, body or None, headers)
        answer = connection.getresponse()
        if answer.status >= 500:
            print(f"5xx     {handler.command} {path}: {answer.status}", flush=True)
        handler.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_BY_HOP:
                handler.send_header(name, value)
        handler.end_headers()
        while piece := answer.read1(65536):
            handler.wfile.write(piece)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the client left: closing our side tells the server
    finally:
        connection.close()
