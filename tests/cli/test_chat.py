"""The conversation loop with a scripted partner, and the HTTP partner against a scripted server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tailrace.cli.chat import ChatOptions, Conversation, Message, Show, Stats
from tailrace.cli.chat_http import HttpPartner
from tailrace.errors import ConfigError, InvalidRequest, RequestError, Unavailable

OPTIONS = ChatOptions(url="", key="", model="", system="", max_tokens=16, temperature=0.0)


class Scripted:
    """Answers with the texts it was given; an exception in their place is raised."""

    name = "scripted"

    def __init__(self, *answers: str | BaseException) -> None:
        self.answers = list(answers)
        self.seen: list[list[Message]] = []

    def answer(self, messages: list[Message], show: Show) -> Stats:
        self.seen.append(list(messages))
        answer = self.answers.pop(0)
        if isinstance(answer, InvalidRequest):
            raise answer
        show("half " if isinstance(answer, BaseException) else answer)
        if isinstance(answer, BaseException):
            raise answer
        return Stats(3, 0.012, 40.4)

    def close(self) -> None:
        pass


def lines(*texts: str) -> Callable[[], str]:
    """A reader that ends like Ctrl-D."""
    left = list(texts)

    def read() -> str:
        if not left:
            raise EOFError
        return left.pop(0)

    return read


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def test_history_grows_and_the_numbers_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    partner = Scripted("one", "two")
    Conversation(partner, "be brief").run(lines("a", "", "b"))
    system = {"role": "system", "content": "be brief"}
    assert partner.seen == [[system, user("a")], [system, user("a"), assistant("one"), user("b")]]
    assert "3 tokens, 40 tok/s, first after 12 ms" in capsys.readouterr().out


def test_reset_forgets_all_but_the_system_message() -> None:
    partner = Scripted("one", "two")
    Conversation(partner, "s").run(lines("a", "/reset", "b", "/exit", "never"))
    assert partner.seen[1] == [{"role": "system", "content": "s"}, user("b")]
    assert len(partner.seen) == 2


def test_ctrl_c_keeps_the_part_that_came_and_goes_on() -> None:
    partner = Scripted(KeyboardInterrupt(), "two")
    Conversation(partner, "").run(lines("a", "b"))
    assert partner.seen[1] == [user("a"), assistant("half "), user("b")]


def test_a_refused_message_is_shown_and_not_remembered(capsys: pytest.CaptureFixture[str]) -> None:
    partner = Scripted(InvalidRequest("too long"), "two")
    Conversation(partner, "").run(lines("a", "b"))
    assert partner.seen[1] == [user("b")]
    assert "error: too long" in capsys.readouterr().err


def test_an_unknown_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    Conversation(Scripted(), "").run(lines("/wat"))
    assert "/reset" in capsys.readouterr().out


class Server:
    """Answers every request from a table of path -> (status, body) and keeps what it was asked."""

    def __init__(self, answers: dict[str, tuple[int, bytes]]) -> None:
        seen: list[tuple[str, str | None, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                seen.append((self.path, self.headers.get("Authorization"), json.loads(body or b"null")))
                status, data = answers[self.path]
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_GET

            def log_message(self, *args: object) -> None:
                pass

        self.seen = seen
        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[[dict[str, tuple[int, bytes]]], Server]]:
    servers: list[Server] = []

    def start(answers: dict[str, tuple[int, bytes]]) -> Server:
        servers.append(Server(answers))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def sse(*events: object) -> bytes:
    return b": ping\n\n" + b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events) + b"data: [DONE]\n\n"


def options(url: str, **changes: str) -> ChatOptions:
    return ChatOptions(url, changes.get("key", ""), changes.get("model", ""), "", 16, 0.0)


MODELS = (200, json.dumps({"data": [{"id": "m1"}, {"id": "m2"}]}).encode())


def test_http_partner_streams_and_takes_the_servers_timings(serve: Callable[..., Server]) -> None:
    stream = sse(
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"content": "Hel"}}]},
        {"choices": [{"delta": {"content": "lo"}, "finish_reason": "length"}], "timings": {"tpot_ms": 4.0}},
        {"choices": [], "usage": {"completion_tokens": 2}},
    )
    server = serve({"/v1/models": MODELS, "/v1/chat/completions": (200, stream)})
    partner = HttpPartner(options(server.url + "/v1/", key="sk-1"))
    pieces: list[str] = []
    stats = partner.answer([user("hi")], pieces.append)
    assert pieces == ["Hel", "lo"]
    assert (stats.tokens, stats.per_second, stats.finish) == (2, 250.0, "length")
    assert [key for _, key, _ in server.seen] == ["Bearer sk-1"] * 2
    body = server.seen[1][2]
    assert (body["model"], body["messages"], body["stream"], body["max_tokens"]) == ("m1", [user("hi")], True, 16)


def test_http_partner_passes_on_the_servers_refusal(serve: Callable[..., Server]) -> None:
    refusal = (400, json.dumps({"error": {"message": "roles must alternate"}}).encode())
    partner = HttpPartner(options(serve({"/v1/chat/completions": refusal}).url, model="m"))
    with pytest.raises(RequestError, match=r"roles must alternate \(status 400\)"):
        partner.answer([user("hi")], print)


def test_http_partner_reports_an_error_inside_the_stream(serve: Callable[..., Server]) -> None:
    stream = sse({"choices": [{"delta": {"content": "x"}}]}, {"error": {"message": "broken"}})
    partner = HttpPartner(options(serve({"/v1/chat/completions": (200, stream)}).url, model="m"))
    with pytest.raises(RequestError, match="broken"):
        partner.answer([user("hi")], lambda text: None)


def test_http_partner_names_an_address_that_does_not_answer(serve: Callable[..., Server]) -> None:
    server = serve({})
    server.close()
    with pytest.raises(Unavailable, match="no answer from http://127"):
        HttpPartner(options(server.url))


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://"])
def test_http_partner_refuses_what_is_no_url(url: str) -> None:
    with pytest.raises(ConfigError, match="--url"):
        HttpPartner(options(url))
