"""The real thing in its own process: a tiny model file, the engine, HTTP, and the end by SIGTERM."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tailrace import _native
from tailrace.cli.serve import example, importing
from tailrace.config import load
from tailrace.llm.ready import served_name
from tests.tiny import write_tiny_gguf
from tests.tiny_bert import write_tiny_bert

SERVE = ("serve", "--port", "0", "--threads", "1", "--kv-memory", "8MiB")


def program(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tailrace", *arguments]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_gguf(folder / "tiny.gguf", wtype="q4_1")
    return folder / "tiny.gguf"


@contextmanager
def server(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A serving process and the lines it printed up to the curl line."""
    process = subprocess.Popen(program(*SERVE, *arguments), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines: list[str] = []
    try:
        while line := process.stdout.readline():
            lines.append(line.rstrip())
            if line.startswith("curl"):
                break
        yield process, lines
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


def test_serve_answers_says_what_it_runs_and_stops_cleanly(model: Path, tmp_path: Path) -> None:
    with server(str(model), "--store", str(tmp_path)) as (process, lines):
        facts = {line.split()[0]: line for line in lines if line}
        assert {"model", "kernels", "weights", "context", "memory", "prefill", "ready", "curl"} <= set(facts)
        assert "1 threads" in facts["kernels"]
        assert "packed now" in facts["weights"]
        assert "KV cache 8 MiB" in facts["memory"]
        url = re.findall(r"http://\S+", facts["ready"])[0]
        body = json.loads(shlex.split(facts["curl"])[-1])
        answer = post(shlex.split(facts["curl"])[1], body)
        assert answer["model"] == "tiny"
        assert answer["usage"]["completion_tokens"] > 0
        assert post(url + "/tokenize", {"prompt": "hello world"})["count"] > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=120) as response:
        return json.load(response)


def test_several_models_share_a_server(model: Path, tmp_path: Path) -> None:
    """The second is loaded when a request asks for it; what is broken fails its own requests."""
    encoder = write_tiny_bert(tmp_path / "tiny-bert")
    broken = tmp_path / "broken.gguf"
    shutil.copy(model, broken)
    arguments = (str(model), str(encoder), str(broken), "--store", str(tmp_path / "store"))
    with server(*arguments) as (process, lines):
        url = next(re.findall(r"http://\S+", line)[0] for line in lines if line.startswith("ready"))
        cards = get(url + "/v1/models")["data"]
        assert [(card["id"], card["loaded"]) for card in cards] == [
            ("tiny", True), ("tiny-bert", False), ("broken", False)
        ]  # fmt: skip
        broken.write_bytes(b"GGUF")
        found = post(url + "/v1/embeddings", {"model": "tiny-bert", "input": ["the river", "green stones"]})
        assert [len(entry["embedding"]) for entry in found["data"]] == [64, 64]
        assert len(post(url + "/v1/embeddings", {"input": "hello"})["data"][0]["embedding"]) == 64
        with pytest.raises(urllib.error.HTTPError) as failed:
            post(url + "/v1/completions", {"model": "broken", "prompt": "hello"})
        assert failed.value.code == 503
        assert json.load(failed.value)["error"]["code"] == "model_load_failed"
        assert post(url + "/v1/completions", {"model": "tiny", "prompt": "hello"})["usage"]["completion_tokens"] > 0
        listed = subprocess.run(program("ps", "--url", url, "--json"), capture_output=True, text=True, check=True)
        states = {line["name"]: (line["state"], line["memory_bytes"] > 0) for line in json.loads(listed.stdout)}
        assert states == {"tiny": ("loaded", True), "tiny-bert": ("loaded", True), "broken": ("failed", False)}
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0


def test_a_second_start_finds_the_packed_weights_and_gives_the_same_answer(model: Path, tmp_path: Path) -> None:
    answers = []
    for state in ("packed now", "from the store"):
        with server(str(model), "--store", str(tmp_path), "--served-name", "m") as (_, lines):
            assert any(state in line for line in lines if line.startswith("weights"))
            url = next(re.findall(r"http://\S+", line)[0] for line in lines if line.startswith("ready"))
            request = {"model": "m", "prompt": "hello", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
            answers.append(post(url + "/v1/completions", request)["choices"][0]["text"])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("isa", ["portable", *sorted(set(_native.test_variants()) & {"avx512-emulated"})])
def test_a_forced_variant_answers_a_chat(model: Path, tmp_path: Path, isa: str) -> None:
    """What a machine without the better instructions runs."""
    with server(str(model), "--store", str(tmp_path), "--isa", isa) as (_, lines):
        assert f"{isa}, 1 threads" in next(line for line in lines if line.startswith("kernels"))
        url = next(re.findall(r"http://\S+", line)[0] for line in lines if line.startswith("ready"))
        request = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 12,
                   "temperature": 0, "ignore_eos": True}  # fmt: skip
        answers = [post(url + "/v1/chat/completions", request) for _ in range(2)]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert answers[0]["choices"][0]["finish_reason"] == "length"
    assert answers[0]["usage"]["completion_tokens"] == 12


def test_chat_runs_the_engine_in_its_own_process(model: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        program("chat", str(model), "--store", str(tmp_path), "--threads", "1", "--max-tokens", "5"),
        input="hello\n/exit\n", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert re.search(r"\d tokens", result.stdout)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("absent.gguf",), "There is no model file at absent.gguf"),
        (("no-such-model",), "There is no model named 'no-such-model'"),
        (("--isa", "z80", "MODEL"), "z80"),
        (("--max-context", "9999999", "MODEL"), "9999999"),
        (("--kv-memory", "1", "MODEL"), "kv_memory"),
        (("--chat-template", "absent.jinja", "MODEL"), "absent.jinja"),
        (("--host", "256.1.1.1", "MODEL"), "256.1.1.1"),
    ],
)
def test_what_cannot_be_served_is_one_line_and_status_2(
    model: Path, tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    words = [str(model) if word == "MODEL" else word for word in arguments]
    result = subprocess.run(
        program("serve", "--port", "0", "--kv-memory", "8MiB", "--store", str(tmp_path), *words),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    errors = [
        line for line in result.stderr.splitlines() if not line.endswith("...") and not line.startswith("warning: ")
    ]
    assert result.returncode == 2
    assert len(errors) == 1
    assert errors[0].startswith("error: ")
    assert expected in errors[0]


def test_served_name() -> None:
    own = load(environ={}, flags={"engine.served_name": "mine"}).config.engine
    assert served_name(own, Path("/a/b.gguf")) == "mine"
    named = load(environ={}, flags={"engine.model": "some:name"}).config.engine
    assert served_name(named, Path("/a/b.gguf")) == "some:name"


def test_served_name_of_a_path_is_the_files(tmp_path: Path) -> None:
    (tmp_path / "b.Q4_1.gguf").touch()
    config = load(environ={}, flags={"engine.model": str(tmp_path / "b.Q4_1.gguf")}).config.engine
    assert served_name(config, tmp_path / "b.Q4_1.gguf") == "b.Q4_1"


def test_the_curl_line_survives_a_shell() -> None:
    line = example("http://127.0.0.1:1", "it's", chat=False, key=True)
    words = shlex.split(line)
    assert words[1] == "http://127.0.0.1:1/v1/completions"
    assert "Authorization: Bearer YOUR_KEY" in words
    assert json.loads(words[-1]) == {"model": "it's", "prompt": "Once", "max_tokens": 64}


def test_a_module_is_there_when_the_work_beside_it_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heavy_thing.py").write_text("import threading; by = threading.current_thread().name")
    monkeypatch.syspath_prepend(tmp_path)
    with importing("heavy_thing"):
        pass
    assert sys.modules.pop("heavy_thing").by == "import heavy_thing"


def test_an_error_beside_an_import_is_the_one_that_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_thing.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(tmp_path)
    with importing("broken_thing"):
        pass  # whoever uses it will see
    with pytest.raises(LookupError, match="mine"), importing("broken_thing"):
        raise LookupError("mine")


def test_http_is_imported_beside_the_weights_not_before() -> None:
    script = "import sys, tailrace.cli.serve; sys.exit('fastapi' in sys.modules or 'uvicorn' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
