"""What is found out about servers of different abilities, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.backends.fake import FakeBackend
from tailrace.bench.http import Http
from tailrace.bench.options import Options
from tailrace.bench.pace import RealPace
from tailrace.bench.pieces import LETTERS, WORDS, Segment
from tailrace.bench.probe import Probe, Server
from tailrace.clock import SystemClock
from tailrace.errors import ConfigError, ModelNotFound, RequestError, TailraceError, Unauthorized, Unavailable
from tests.bench.servers import Odd, dropping, error, serving
from tests.serving import live, make_state


async def look(base: str, **fields: Any) -> Server:
    options = Options(url=base, **fields)
    async with Http(base, options.key, 120.0) as http:
        return await Probe(http, options, RealPace(SystemClock())).look()


async def found(odd: Odd, **fields: Any) -> Server:
    async with serving(odd) as base:
        return await look(base, **fields)


async def test_ours_takes_everything() -> None:
    async with live(make_state(FakeBackend(max_context=2048))) as base:
        server = await look(base)
        chat = await look(base, workload="multi-turn")
    assert (server.shape.chat, server.shape.usage, server.shape.fixed, server.tokenizer) == (False, True, True, True)
    assert (server.pieces.how, server.pieces.overhead, server.notes) == ("ids", 0, ())
    assert server.max_context == 2048
    assert chat.shape.chat
    assert (chat.pieces.how, chat.pieces.texts) == ("tokenize", LETTERS)  # its tokens are bytes: no word is one


async def test_words_calibrated_by_usage_where_there_is_no_tokenizer() -> None:
    server = await found(Odd(), endpoint="chat")
    assert (server.pieces.how, server.pieces.overhead, server.pieces.cost) == ("usage", 6, 1.0)
    prompt = server.pieces.prompt([Segment("a", 50)], "salt")
    assert isinstance(prompt, str)
    assert 5 + len(prompt.split()) == 50


async def test_ids_are_not_used_where_the_route_refuses_them() -> None:
    assert (await found(Odd(tokenizer=True))).pieces.how == "tokenize"
    assert (await found(Odd(tokenizer=True, takes_ids=True))).pieces.how == "ids"


async def test_without_usage_and_tokenizer_counts_are_guesses_and_said_to_be() -> None:
    server = await found(Odd(usage=False))
    assert (server.shape.usage, server.pieces.how, server.pieces.texts) == (False, "guess", WORDS)
    assert [note.split(":")[0] for note in server.notes] == [
        "answer tokens are estimates",
        "prompt lengths are guesses",
    ]


async def test_a_server_that_refuses_the_usage_option_is_asked_without() -> None:
    server = await found(Odd(refuses=("stream_options",)))
    assert not server.shape.usage


@pytest.mark.parametrize("field", ["ignore_eos", "min_tokens"])
async def test_answers_of_fixed_length_only_where_they_can_be_had(field: str) -> None:
    server = await found(Odd(refuses=(field,)))
    assert not server.shape.fixed
    assert "--output is an upper bound" in server.notes[0]
    assert not (await found(Odd(), natural_end=True)).shape.fixed


async def test_the_route_follows_the_workload_and_what_there_is() -> None:
    assert not (await found(Odd())).shape.chat
    assert (await found(Odd(completions=False))).shape.chat
    assert (await found(Odd(), workload="multi-turn")).shape.chat
    texts = await found(Odd(chat=False), workload="multi-turn")
    assert not texts.shape.chat
    assert "sent as texts" in texts.notes[0]


@pytest.mark.parametrize(
    ("odd", "fields", "error_type", "said"),
    [
        (Odd(key="secret"), {}, Unauthorized, "--key"),
        (Odd(key="secret"), {"key": "wrong"}, Unauthorized, "--key"),
        (Odd(), {"model": "third"}, ModelNotFound, "serves odd, other"),
        (Odd(chat=False, completions=False), {}, RequestError, "404 not_found"),
        (Odd(chat=False), {"endpoint": "chat"}, RequestError, "404 not_found"),
        (Odd(script=[lambda body: error(500, "internal_error", "oh")]), {}, RequestError, "500 internal_error: oh"),
    ],
)
async def test_what_leaves_nothing_to_measure(
    odd: Odd, fields: Any, error_type: type[TailraceError], said: str
) -> None:
    with pytest.raises(error_type) as raised:
        await found(odd, **fields)
    assert said in raised.value.message


async def test_a_key_that_fits() -> None:
    assert (await found(Odd(key="secret"), key="secret")).shape.model == "odd"


async def test_nobody_there() -> None:
    async with dropping(b"") as base:
        with pytest.raises(Unavailable, match="--url"):
            await look(base)


async def test_no_address() -> None:
    with pytest.raises(ConfigError, match="--url"):
        await look("localhost:8000")
