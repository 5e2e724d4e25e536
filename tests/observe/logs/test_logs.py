"""Log lines: their fields, their form, and that they never hold anybody up."""

from __future__ import annotations

import io
import json
import logging
import os
import threading
from contextvars import copy_context
from typing import Any, BinaryIO, cast

import pytest

from tailrace.backends.fake import FakeBackend
from tailrace.backends.faulty import Fault, FaultyBackend, Kind
from tailrace.config import Config, load
from tailrace.observe.current import begin, identified
from tailrace.observe.ended import Ended
from tailrace.observe.logs.logs import Logs, logging_to
from tailrace.observe.logs.writer import BOUND, Writer
from tests.serving import chat, in_process, make_state

CHAT = "/v1/chat/completions"
log = logging.getLogger("tailrace.somewhere")


def configured(form: str = "json", level: str = "info", **flags: Any) -> Config:
    return load(environ={}, flags={"observe.log_format": form, "observe.log_level": level, **flags}).config


def written(form: str, say: Any, **settings: Any) -> list[str]:
    stream = io.BytesIO()
    with logging_to(stream, configured(form, **settings)):
        say()
    return stream.getvalue().decode().splitlines()


def as_json(say: Any, **settings: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written("json", say, **settings)]


async def served(form: str, path: str, body: Any, **settings: Any) -> tuple[list[str], Ended]:
    """The lines of one request, and its end."""
    stream, ends = io.BytesIO(), list[Ended]()
    with logging_to(stream, configured(form)) as logs:
        state = make_state(**settings)
        state.plane.watchers = (logs, ends.append)
        async with in_process(state) as client:
            await client.post(path, json=body, headers={"x-request-id": "mine", "authorization": "Bearer sk-hush-hush"})
    return stream.getvalue().decode().splitlines(), ends[0]


def test_a_line_has_its_fields() -> None:
    def say() -> None:
        log.warning("the %s is %d", "answer", 42, extra={"device": "cpu", "share": 0.5})

    (line,) = as_json(say)
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "tailrace.somewhere",
        "message": "the answer is 42",
        "device": "cpu",
        "share": 0.5,
    }


def test_a_line_of_a_request_says_which_and_whose() -> None:
    def say() -> None:
        identified("nobody's")
        log.info("of none")
        begin("r-1")
        identified("acme")
        log.info("with a tenant")
        begin("r-2")
        log.info("without")

    lines = as_json(lambda: copy_context().run(say))
    said = [(line.get("request_id"), line.get("tenant")) for line in lines]
    assert said == [(None, None), ("r-1", "acme"), ("r-2", None)]
    assert "[request r-1]" in written("text", lambda: copy_context().run(say))[1]


@pytest.mark.parametrize(("level", "shown"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_levels(level: str, shown: int) -> None:
    def say() -> None:
        for name in ("debug", "info", "warning", "error"):
            getattr(log, name)(name)
        logging.getLogger("alembic").info("chatter of others")

    assert len(written("text", say, level=level)) == shown


def test_the_loggers_of_the_web_server_and_of_the_event_loop_go_the_same_way() -> None:
    def say() -> None:
        for name in ("uvicorn.error", "asyncio", "py.warnings"):
            logging.getLogger(name).warning("trouble")

    assert [line["logger"] for line in as_json(say)] == ["uvicorn.error", "asyncio", "py.warnings"]


def test_a_thread_that_fails_is_a_line_with_its_traceback() -> None:
    def fail() -> None:
        raise RuntimeError("boom redis://:hush@cache/0")

    def say() -> None:
        thread = threading.Thread(target=fail, name="worker")
        thread.start()
        thread.join()

    (line,) = as_json(say)
    assert (line["level"], line["message"]) == ("critical", "the thread worker ended with an exception")
    assert line["exception"].startswith("Traceback") and "RuntimeError: boom redis://***@cache/0" in line["exception"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_secrets_are_in_no_part_of_a_line(form: str) -> None:
    def say() -> None:
        try:
            try:
                raise ConnectionError("postgresql://tailrace:hush-hush@db/x: password=hush-hush")
            except ConnectionError as error:
                raise RuntimeError("Authorization: Bearer hush-hush") from error
        except RuntimeError:
            log.exception("x-api-key: %s", "hush-hush", extra={"url": "redis://:hush-hush@cache"}, stack_info=True)
        log.error("the password hush-hush did not do")

    flags = {"data.database": "postgresql://tailrace:hush-hush@db/x"}
    text = "\n".join(written(form, say, **flags))
    assert "hush" not in text and "RuntimeError" in text and "ConnectionError" in text


def test_a_text_cannot_pass_itself_off_as_a_line() -> None:
    forged = "x\n2026-01-01 00:00:00.000 CRITICAL tailrace: all is lost\r\x1b[2J"

    def say() -> None:
        log.warning("said %s", forged)
        try:
            raise ValueError(forged)
        except ValueError:
            log.exception("failed")

    lines = written("text", say)
    assert "\\n2026" in lines[0] and "\x1b" not in "".join(lines)
    assert [line for line in lines if "all is lost" in line and not line.startswith("  ")] == lines[:1]
    assert len(as_json(say)) == 2


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_cannot_be_written_as_it_is_is_written_all_the_same(form: str) -> None:
    def say() -> None:
        log.warning("half a pair \ud800", extra={"big": 10**30, "odd": object()})
        log.warning("%d", "no number")
        log.warning("x" * 100_000)

    lines = written(form, say)
    assert len(lines) == 3 and "half a pair ?" in lines[0] and "could not be made" in lines[1]
    assert max(map(len, lines)) < 20_000


async def test_a_request_has_one_line_at_its_end_as_json() -> None:
    (line,), end = await served("json", CHAT, chat("the weather in Utopia", max_tokens=4))
    said, facts = json.loads(line), end.timeline.facts
    phases = {phase.value: length / 1000 for phase, length in end.timeline.parts().items() if length}
    expected = {
        "level": "info",
        "logger": "tailrace.access",
        "message": f"POST {CHAT} 200 ok",
        "method": "POST",
        "path": CHAT,
        "status": 200,
        "outcome": "ok",
        "tenant": "default",
        "class": "interactive",
        "model": "fake",
        "total_ms": end.timeline.total() / 1000,
        "prompt_tokens": facts["prompt_tokens"],
        "cached_tokens": 0,
        "completion_tokens": 4,
        "phases_ms": phases,
        "request_id": "mine",
    }
    assert said | expected == said
    assert "Utopia" not in line and "hush" not in line


async def test_a_request_has_one_line_at_its_end_as_text() -> None:
    (line,), end = await served("text", CHAT, chat("the weather in Utopia", max_tokens=4))
    assert f" INFO tailrace.access: POST {CHAT} 200 ok tenant=default class=interactive model=fake " in line
    assert line.endswith("request_id=mine")
    assert f" prompt_tokens={end.timeline.facts['prompt_tokens']} cached_tokens=0 completion_tokens=4 " in line
    assert "Utopia" not in line and "hush" not in line


async def test_lines_of_refusals_and_failures_hold_no_text_of_the_prompt() -> None:
    bodies = [
        chat("Utopia", temperature="Utopia"),
        {"model": "fake", "messages": [{"role": "wizard", "content": "Utopia"}]},
        {"model": "fake", "messages": "Utopia"},
        chat("Utopia" * 5000),
    ]
    for body in bodies:
        lines, end = await served("json", CHAT, body)
        assert len(lines) == 1 and end.status == 400
        assert "Utopia" not in lines[0]
    faulty = FaultyBackend(FakeBackend(), lambda request: Fault(Kind.RAISE))
    lines, end = await served("json", CHAT, chat("Utopia"), backend=faulty)
    assert end.status == 500 and "Utopia" not in "".join(lines)
    assert {json.loads(line).get("request_id") for line in lines} == {"mine"}
    assert [json.loads(line)["logger"] for line in lines][-1] == "tailrace.access"


async def test_probes_have_no_line() -> None:
    stream = io.BytesIO()
    with logging_to(stream, configured("text")) as logs:
        state = make_state()
        state.plane.watchers = (logs,)
        async with in_process(state) as client:
            for path in ("/health/live", "/health/ready", "/metrics", "/v1/models", "/nowhere"):
                await client.get(path)
    lines = stream.getvalue().decode().splitlines()
    assert [line.split(": ")[1].split(" tenant")[0].split(" total")[0] for line in lines] == [
        "GET /v1/models 200 ok",
        "GET 404 invalid error=404",
    ]


def test_only_a_level_that_shows_information_has_a_line_per_request() -> None:
    levels = ("debug", "info", "warning", "error")
    assert [Logs(configured(level=level), io.BytesIO()).watches for level in levels] == [True, True, False, False]


def test_a_reader_that_stalls_costs_lines_and_no_time() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, True)
    with os.fdopen(writing, "wb") as stream, os.fdopen(reading, "rb") as reader:
        writer = Writer(stream, lambda lost: b"%d lost\n" % lost)
        while writer.lost < 10:  # a pipe holds 64 KiB, the queue the rest
            writer.put(b"x" * 999 + b"\n")
        lost = writer.lost
        closer = threading.Thread(target=lambda: (writer.close(60), stream.close()))
        closer.start()
        lines = reader.read().splitlines()
        closer.join()
    assert b"%d lost" % lost in lines
    assert len(lines) > BOUND


class Broken(io.RawIOBase):
    """A stream that nobody reads any more, for the first writes."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.got: list[bytes] = []

    def write(self, data: Any) -> int:
        if self.failures:
            self.failures -= 1
            raise BrokenPipeError
        self.got.append(bytes(data))
        return len(data)


def test_a_stream_that_breaks_is_tried_again() -> None:
    stream = Broken(1)
    writer = Writer(cast(BinaryIO, stream), lambda lost: b"%d lost\n" % lost)
    writer.put(b"a\n")
    pause = threading.Event()
    while writer.lost == 0:
        pause.wait(0.001)
    writer.put(b"b\n")
    writer.close(60)
    assert stream.got == [b"b\n1 lost\n"]


def test_a_line_that_cannot_be_made_is_lost_alone() -> None:
    stream = Broken(0)
    writer = Writer(cast(BinaryIO, stream), lambda lost: b"%d lost\n" % lost)
    writer.put(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    writer.put(b"b\n")
    writer.close(60)
    assert b"b\n" in b"".join(stream.got)
    assert writer.lost == 1


def test_logging_is_afterwards_as_it_was() -> None:
    root, ours = logging.getLogger(), logging.getLogger("tailrace")
    before = (root.handlers[:], root.level, ours.level, threading.excepthook)
    written("text", lambda: None)
    assert (root.handlers[:], root.level, ours.level, threading.excepthook) == before
