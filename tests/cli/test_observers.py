"""A server as it is started tells the log and a collector of its requests, and stops also when that one hangs."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.test_serve import SERVE, get, post, program
from tests.observe.otlp_receiver import attributes, receiver
from tests.tiny import write_tiny_gguf


@contextmanager
def server(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process and its URL. What it logs goes to the file `log`."""
    write_tiny_gguf(folder / "tiny.gguf", wtype="q4_1")
    words = program(*SERVE, str(folder / "tiny.gguf"), "--store", str(folder), "--data-folder", str(folder), *arguments)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        url = next(found[0] for line in process.stdout if (found := re.findall(r"ready .*(http://\S+)", line)))
        yield process, url
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 0


def test_requests_reach_the_log_and_the_collector(tmp_path: Path) -> None:
    with receiver() as collector:
        flags = ("--log-format", "json", "--log-level", "info", "--otlp-endpoint", collector.url)
        with server(tmp_path, *flags, "--otlp-header", "x-token=hush-hush") as (process, url):
            answer = post(f"{url}/v1/completions", {"prompt": "Once", "max_tokens": 3})
            get(f"{url}/v1/models")
            assert 'tailrace_observations_lost_total{what="traces"} 0.0' in get_text(f"{url}/metrics")
            stop(process)
    assert collector.headers["x-token"] == "hush-hush"
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    ends = {line["path"]: line for line in lines if line["logger"] == "tailrace.access"}
    assert set(ends) == {"/v1/completions", "/v1/models"}
    assert ends["/v1/completions"]["completion_tokens"] == answer["usage"]["completion_tokens"]
    spans = {span.name: span for span in collector.spans() if not span.parent_span_id}
    assert set(spans) == {"text_completion tiny", "GET /v1/models"}
    span = spans["text_completion tiny"]
    assert span.trace_id.hex() == ends["/v1/completions"]["trace_id"]
    assert attributes(span.attributes)["tailrace.request_id"] == ends["/v1/completions"]["request_id"]
    assert (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6 == ends["/v1/completions"]["total_ms"]
    (point,) = collector.points("gen_ai.server.request.duration")
    assert point.count == 1


def get_text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=120) as response:
        text: str = response.read().decode()
        return text


def test_a_collector_that_hangs_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    with receiver() as collector:
        collector.open.clear()
        with server(tmp_path, "--otlp-endpoint", collector.url, "--trace-ratio", "1") as (process, url):
            post(f"{url}/v1/completions", {"prompt": "Once", "max_tokens": 3})
            stop(process)
    assert "is too slow: the last" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("flags", [("--otlp-endpoint", "grpc://x"), ("--otlp-header", "hush"), ("--log-level", "loud")])
def test_wrong_settings_end_in_one_line(flags: tuple[str, ...], tmp_path: Path) -> None:
    words = program(*SERVE, "--otlp-endpoint", "http://127.0.0.1:9", *flags, "--store", str(tmp_path))
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: observe.") and "accepted is" in line and "hush" not in line
