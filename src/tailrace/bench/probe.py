"""Finds out, with a few small requests, how a server can be asked and how exactly prompts can be made for it.

Whatever it does not take is left out and noted. Only what leaves nothing to measure is an error.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from tailrace.bench.client import Ask, Client, Shape
from tailrace.bench.http import Http, error_detail
from tailrace.bench.options import Options
from tailrace.bench.pace import Pace
from tailrace.bench.pieces import LETTERS, OPENING, WORDS, Pieces
from tailrace.bench.record import Record
from tailrace.bench.workload import Prompt
from tailrace.errors import ConfigError, ModelNotFound, RequestError, Unauthorized, Unavailable

ENOUGH_PIECES = 24
NO_CHAT = (400, 404, 405, 501)
NOT_TAKEN = (400, 404, 405, 415, 422, 501)


@dataclass(frozen=True, slots=True)
class Server:
    """What the probe found."""

    shape: Shape
    pieces: Pieces
    max_context: int | None
    tokenizer: bool
    notes: tuple[str, ...]


class Probe:
    def __init__(self, http: Http, options: Options, pace: Pace) -> None:
        self._http, self._options, self._pace = http, options, pace
        self._notes: list[str] = []

    async def look(self) -> Server:
        """Raises Unavailable, Unauthorized, ModelNotFound, ConfigError or RequestError, naming the flag to change."""
        model, context = await self._model()
        shape = Shape(model, chat=False, fixed=False, temperature=self._options.temperature)
        shape = await self._route(shape)
        shape = await self._fixed_lengths(shape)
        tokenizer = await self._tokens(model, OPENING) is not None
        if not shape.usage and not tokenizer:
            self._notes.append(
                "answer tokens are estimates: the server reports no usage, so pieces of text are counted"
            )
        pieces = await self._pieces(shape, tokenizer)
        return Server(shape, pieces, context, tokenizer, tuple(self._notes))

    # --- model and route

    async def _model(self) -> tuple[str, int | None]:
        status, body = await self._http.get("/v1/models")
        if status in (401, 403):
            raise Unauthorized(
                f"{self._http.base} wants a key (--key): {error_detail(body).get('message')}", param="--key"
            )
        listed = [card for card in body.get("data") or [] if isinstance(card, dict)]
        wanted = self._options.model
        if not wanted and not listed:
            raise ConfigError(
                f"{self._http.base} lists no model (status {status}): name one with --model", param="--model"
            )
        cards = [card for card in listed if card.get("id") == wanted] or ([] if wanted else listed)
        if wanted and listed and not cards:
            names = ", ".join(str(card.get("id")) for card in listed[:8])
            raise ModelNotFound(f"--model {wanted!r}: {self._http.base} serves {names}", param="--model")
        card: dict[str, Any] = cards[0] if cards else {"id": wanted}
        return str(card["id"]), card.get("max_model_len")

    async def _route(self, shape: Shape) -> Shape:
        """The first route that answers, of those that the options allow, with usage if it takes the option."""
        options = self._options
        wants_text = options.workload in ("multi-turn", "file")
        order = {"chat": [True], "completions": [False], "auto": [True, False] if wants_text else [False, True]}
        failed: Record | None = None
        for chat in order[options.endpoint]:
            for usage in (True, False):
                tried = replace(shape, chat=chat, usage=usage)
                record = await self._try(tried, OPENING)
                if record.ok:
                    return self._noted(tried, record)
                failed = failed or record
                if record.status not in NOT_TAKEN:
                    raise _unusable(record, self._http.base)
        assert failed is not None, "some route was tried"
        raise _unusable(failed, self._http.base)

    def _noted(self, shape: Shape, record: Record) -> Shape:
        if self._options.endpoint == "auto" and self._options.workload in ("multi-turn", "file") and not shape.chat:
            self._notes.append("the chat route does not answer, so conversations are sent as texts to /v1/completions")
        return replace(shape, usage=record.counted == "usage")

    async def _fixed_lengths(self, shape: Shape) -> Shape:
        if self._options.natural_end:
            return shape
        fixed = replace(shape, fixed=True)
        record = await self._try(fixed, OPENING)
        if record.ok:
            return fixed
        self._notes.append(
            f"answers may end early: the server refuses ignore_eos and min_tokens ({record.error}), "
            "so --output is an upper bound"
        )
        return shape

    async def _try(self, shape: Shape, prompt: Prompt, tokens: int = 2) -> Record:
        """A small request; a busy server is waited for."""
        client = Client(self._http, shape, self._pace, retry=True, patience=60.0)
        record, _ = await client.send(Ask(prompt, tokens))
        if record.error == "connection":
            raise Unavailable(f"no answer from {self._http.base} (--url): {record.message}", param="--url")
        return record

    # --- what prompts are made of

    async def _pieces(self, shape: Shape, tokenizer: bool) -> Pieces:
        if tokenizer and not shape.chat and self._options.workload not in ("multi-turn", "file"):
            pieces = await self._id_pieces(shape)
            if pieces is not None:
                return pieces
        if self._options.workload == "file":
            return Pieces()
        return await self._text_pieces(shape, tokenizer)

    async def _id_pieces(self, shape: Shape) -> Pieces | None:
        """Ids that the tokenizer makes of common words, if the route takes ids and counts them as such."""
        start = await self._tokens(shape.model, OPENING) or []
        ids = await self._tokens(shape.model, OPENING + "".join(WORDS)) or []
        pool = tuple(dict.fromkeys(ids[len(start) :]))
        if len(pool) < ENOUGH_PIECES - 8:
            return None
        record = await self._try(shape, list(pool[:16]), 1)
        if not record.ok:
            return None
        overhead = 0 if record.prompt_tokens is None else record.prompt_tokens - len(pool[:16])
        return Pieces(ids=pool, overhead=overhead, how="ids") if overhead >= 0 else None

    async def _text_pieces(self, shape: Shape, tokenizer: bool) -> Pieces:
        how = "tokenize" if tokenizer else "usage"
        overhead = await self._count(shape, OPENING, tokenizer)
        if tokenizer and not overhead:
            return await self._text_pieces(shape, False)  # a tokenizer route that knows no messages
        words = await self._count(shape, OPENING + "".join(WORDS), tokenizer)
        if overhead is None or words is None:
            self._notes.append("prompt lengths are guesses: one word is taken for one token")
            return Pieces()
        if words - overhead == len(WORDS):
            return Pieces(overhead=overhead, how=how)
        if tokenizer:
            exact = await self._exact_pieces(shape, overhead)
            if exact:
                return Pieces(texts=exact, overhead=overhead, how=how)
        self._notes.append(
            "prompt lengths are near what was asked, not exact: the words used cost a varying number of tokens"
        )
        return Pieces(overhead=overhead, cost=(words - overhead) / len(WORDS), how="usage")

    async def _exact_pieces(self, shape: Shape, overhead: int) -> tuple[str, ...]:
        """Words of one token each, else letters, if a text of them really counts as many tokens; else nothing."""
        costs = await asyncio.gather(*(self._count(shape, OPENING + word, True) for word in WORDS))
        words = tuple(word for word, cost in zip(WORDS, costs, strict=True) if cost == overhead + 1)
        for pool in (words, LETTERS):
            text = pool * 3 + pool[::-1]
            if len(pool) >= ENOUGH_PIECES and await self._count(shape, OPENING + "".join(text), True) == overhead + len(
                text
            ):
                return pool
        return ()

    async def _count(self, shape: Shape, text: str, tokenizer: bool) -> int | None:
        """Tokens that the server counts for this text on this route: asked of its tokenizer, or by generating one."""
        if not tokenizer:
            return (await self._try(shape, text, 1)).prompt_tokens
        if not shape.chat:
            tokens = await self._tokens(shape.model, text)
            return None if tokens is None else len(tokens)
        status, body = await self._http.post(
            "/tokenize", {"model": shape.model, "messages": [{"role": "user", "content": text}]}
        )
        return len(body["tokens"]) if status == 200 and isinstance(body.get("tokens"), list) else None

    async def _tokens(self, model: str, text: str) -> list[int] | None:
        return await tokenize(self._http, model, text)


async def tokenize(http: Http, model: str, text: str) -> list[int] | None:
    """Ids by the server's tokenizer route (`content` is one server's name for `prompt`); None where there is none."""
    status, body = await http.post("/tokenize", {"model": model, "prompt": text, "content": text})
    tokens = body.get("tokens")
    return tokens if status == 200 and isinstance(tokens, list) and all(isinstance(t, int) for t in tokens) else None


def _unusable(record: Record, base: str) -> RequestError:
    if record.status in (401, 403):
        return Unauthorized(f"{base} wants a key (--key): {record.message}", param="--key")
    return RequestError(f"{base} does not answer a test request: {record.error}: {record.message}")
