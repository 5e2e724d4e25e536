"""Bad requests beside good ones: no 500, and every good request gets the answer it would get alone.

    python -m tests.soak.fuzz [--requests 10000] [--seed 0]

The suite does the same with 300.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from typing import Any

import httpx

from tailrace.backends.fake import FakeBackend
from tailrace.protocol.chat import ChatRequest
from tailrace.protocol.completions import CompletionRequest
from tailrace.protocol.messages.request import CountRequest, MessagesRequest
from tailrace.protocol.responses.request import ResponsesRequest
from tests.serving import in_process, make_state

CHAT, TEXT, ITEMS, MESSAGES, COUNT = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
)
FIELDS = {
    CHAT: sorted(ChatRequest.model_fields),
    TEXT: sorted(CompletionRequest.model_fields),
    ITEMS: sorted(ResponsesRequest.model_fields),
    MESSAGES: sorted(MessagesRequest.model_fields),
    COUNT: sorted(CountRequest.model_fields),
}
GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "seed": 5},
    TEXT: {"prompt": "hello", "max_tokens": 4, "seed": 5, "logprobs": 2, "echo": True},
    ITEMS: {"input": "hello", "max_output_tokens": 4, "seed": 5},
    MESSAGES: {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "seed": 5},
    COUNT: {"messages": [{"role": "user", "content": "hello"}]},
}
SAID = {CHAT: "choices", TEXT: "choices", ITEMS: "status", MESSAGES: "content", COUNT: "input_tokens"}  # of an answer


def _nested(depth: int, kind: str) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


HOSTILE: list[Any] = [
    -1, 0, 1, 2, 1e308, -1e308, 1e-320, 10**9, -(10**9), 2**63, 2**64, -(2**63) - 1, 10**30, 0.5, True, False, "", " ",
    "x", "\0", "\ud800", "a\udfffb", "9" * 400, "\u202e\U0010ffff", [], [[]], {}, [None], {"": None}, [1, "a"],
    ["\ud800"],
    [0, 10**12], [-1], ["" for _ in range(200)], {"1": 1e308}, {"-1": 1}, {"0": "a"}, {"9" * 30: 1}, {"type": "x"},
    {"type": "json_schema"}, {"type": "json_object", "schema": 3}, {"regex": "("}, {"json": {"$ref": "#"}},
    [{"role": "user"}], [{"role": "wizard", "content": "x"}], [{"role": "user", "content": None}],
    [{"role": "user", "content": [{"type": "text"}]}], [{"role": "tool", "content": "x"}],
    [{"role": "user", "content": "\ud800"}], [{"type": "function", "function": {"name": "a"}}] * 2,
    {"type": "function", "function": {"name": "nobody"}}, "required", _nested(60, "list"), _nested(60, "dict"),
    _nested(300, "list"), _nested(400, "dict"), "auto", "resp_x", {"type": "auto"},
    {"type": "enabled", "budget_tokens": 1}, {"format": {"type": "json_schema", "schema": {"$ref": "#"}, "name": "a"}},
    {"effort": "high", "summary": "concise"},
    [{"name": "a", "input_schema": {}}], [{"type": "function", "name": "a", "parameters": {"type": []}}],
    [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}],
    [{"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "a", "input": {}}]}],
    [{"type": "function_call", "call_id": "x", "name": "a", "arguments": "{"}], [{"type": "reasoning", "summary": []}],
    [{"type": "function_call_output", "call_id": "x", "output": []}],
    [{"type": "message", "role": "user", "content": []}],
]  # fmt: skip
BROKEN = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"\xff\xfe",
    b'{"prompt": "x", "n": NaN}',
    b'{"messages": Infinity}',
    b"[" * 5000,
    b'{"a": ' * 5000,
]


def hostile(draw: random.Random) -> tuple[str, bytes]:
    """A path and a body that is wrong, or strange, in one to three fields."""
    path = draw.choice([*GOOD])
    if draw.random() < 0.03:
        return path, draw.choice(BROKEN)
    body = dict(GOOD[path])
    for name in draw.sample(FIELDS[path], draw.randint(1, 3)):
        body[name] = draw.choice(HOSTILE)
    return path, json.dumps(body).encode()


async def fuzz(requests: int, seed: int) -> Counter[int]:
    """How many bad requests got which status. Asserts what the module promises."""
    draw = random.Random(seed)
    found: Counter[int] = Counter()
    async with in_process(make_state(FakeBackend())) as client:
        alone = {path: await _good(client, path) for path in GOOD}
        for _ in range(0, requests, 10):
            bad = [hostile(draw) for _ in range(10)]
            answers = await asyncio.gather(
                *(client.post(path, content=body) for path, body in bad), *(_good(client, path) for path in GOOD)
            )
            for (path, body), answer in zip(bad, answers[:10], strict=True):
                _check(path, body, answer, found)
            assert answers[10:] == list(alone.values()), "a good request got another answer"
    return found


def _check(path: str, body: bytes, answer: httpx.Response, found: Counter[int]) -> None:
    found[answer.status_code] += 1
    assert answer.status_code < 500, (path, body[:600], answer.text)
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert error["message"], (path, body[:600])
        assert error.get("param") or error["code"] == "invalid_json", (path, body[:600], error)


async def _good(client: httpx.AsyncClient, path: str) -> Any:
    answer = await client.post(path, json=GOOD[path])
    assert answer.status_code == 200, answer.text
    return answer.json()[SAID[path]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started = time.monotonic()
    found = asyncio.run(fuzz(options.requests, options.seed))
    print(dict(sorted(found.items())), f"no 500, no good request lost ({time.monotonic() - started:.0f} s)")


if __name__ == "__main__":
    main()
