"""Pulling from the hub (one on this machine): only what is needed, one commit, resumed, verified, typed errors."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.engine.store.hub import UNFINISHED
from tailrace.engine.store.hub_name import HubFile, HubName, choose, parse_name
from tailrace.engine.store.store import Store
from tailrace.engine.weights.open import open_checkpoint
from tailrace.errors import StoreError
from tests.engine.store.fake_hub import COMMIT, FakeHub, serving
from tests.tiny_hf import write_tiny_folder

BIG = bytes(range(256)) * 2000
PARTS = tuple(f"split/m-Q8_0-0000{k}-of-00002.gguf" for k in (1, 2))


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    files = {"README.md": b"hello", "m-Q4_K_M.gguf": BIG, "m-Q8_0.gguf": BIG[::-1], "mmproj-m.gguf": b"x" * 2000}
    with serving(FakeHub(files | dict.fromkeys(PARTS, BIG))) as running:
        yield running


def store_of(root: Path, hub: FakeHub) -> Store:
    return Store(root, catalog=[], hub_endpoint=hub.endpoint)


def refusal(store: Store, name: str) -> StoreError:
    with pytest.raises(StoreError) as caught:
        store.pull(name)
    return caught.value


def test_one_file_and_nothing_else(tmp_path: Path, hub: FakeHub) -> None:
    store = store_of(tmp_path, hub)
    heard: list[tuple[str, int, int]] = []
    path = store.pull("hf:org/tiny:m-Q4_K_M.gguf", lambda *step: heard.append(step))
    assert path.read_bytes() == BIG and path.name == "m-Q4_K_M.gguf"
    assert [name for name, _ in hub.seen] == ["m-Q4_K_M.gguf"]
    assert heard[-1] == ("downloading", len(BIG), len(BIG))
    assert [done for _, done, _ in heard] == sorted(done for _, done, _ in heard)
    (line,) = store.models()
    assert (line.name, line.path, line.size, line.pulled) == ("hf:org/tiny:m-Q4_K_M.gguf", path, len(BIG), True)
    assert line.summary == f"commit {COMMIT[:12]}"


def test_a_pulled_name_needs_no_hub(tmp_path: Path, hub: FakeHub) -> None:
    with pytest.raises(StoreError, match=r"is not pulled yet\. Run: tailrace pull hf:org/tiny:Q8_0") as caught:
        store_of(tmp_path, hub).resolve("hf:org/tiny:Q8_0")
    assert caught.value.code == "not_pulled"
    path = store_of(tmp_path, hub).pull("hf:org/tiny:m-Q8_0.gguf")
    hub.refuse = (500, "down")
    store = Store(tmp_path, catalog=[])
    assert store.resolve("hf:org/tiny:m-Q8_0.gguf") == store.pull("hf:org/tiny:m-Q8_0.gguf") == path
    path.write_bytes(b"short")  # not what was pulled
    with pytest.raises(StoreError, match="is not pulled yet"):
        store.resolve("hf:org/tiny:m-Q8_0.gguf")


def test_a_model_folder_is_only_what_is_needed(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "made", shards=2)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    extra = {
        "pytorch_model.bin": b"pickle",
        "consolidated.safetensors": b"x",
        "onnx/model.onnx": b"y",
        "README.md": b"",
    }
    with serving(FakeHub(files | extra)) as hub:
        path = store_of(tmp_path / "store", hub).pull("hf:org/tiny")
    assert {name for name, _ in hub.seen} == set(files)
    assert path.is_dir() and path.name == "tiny"
    assert {file.name for file in path.iterdir()} == set(files)
    assert open_checkpoint(path).metadata["general.name"] == "tiny"


def test_all_parts_of_a_split_model_come(tmp_path: Path, hub: FakeHub) -> None:
    path = store_of(tmp_path, hub).pull(f"hf:org/tiny:{PARTS[1]}")
    assert path.name == "m-Q8_0-00001-of-00002.gguf"
    assert sorted(file.name for file in path.parent.iterdir()) == [Path(part).name for part in PARTS]
    assert [name for name, _ in hub.seen] == list(PARTS)


def test_an_interrupted_pull_goes_on_where_it_was(tmp_path: Path, hub: FakeHub) -> None:
    store = store_of(tmp_path, hub)
    hub.files["m-Q4_K_M.gguf"] = BIG * 60  # several of the library's pieces

    def interrupt(stage: str, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.pull("hf:org/tiny:Q4_K_M", interrupt)
    (partial,) = tmp_path.rglob(f"*{UNFINISHED}")
    have = partial.stat().st_size
    assert 0 < have < len(BIG * 60)
    heard: list[int] = []
    path = store.pull("hf:org/tiny:Q4_K_M", lambda stage, done, total: heard.append(done))
    assert path.read_bytes() == BIG * 60
    assert hub.seen[-1] == ("m-Q4_K_M.gguf", f"bytes={have}-")
    assert heard[0] > have
    assert list(tmp_path.rglob(f"*{UNFINISHED}")) == []


@pytest.mark.parametrize(
    "left", [BIG, BIG[:-1] + b"?", BIG + b"more", b""], ids=["whole", "damaged", "longer", "empty"]
)
def test_whatever_was_left_behind_the_result_is_verified(tmp_path: Path, hub: FakeHub, left: bytes) -> None:
    store = store_of(tmp_path, hub)
    path = store.pull("hf:org/tiny:Q4_K_M")
    path.rename(path.with_name(path.name + UNFINISHED))
    path.with_name(path.name + UNFINISHED).write_bytes(left)
    if left == BIG[:-1] + b"?":
        assert "was damaged on its way. Pull again." in refusal(store, "hf:org/tiny:Q4_K_M").message
    assert store.pull("hf:org/tiny:Q4_K_M").read_bytes() == BIG


@pytest.mark.parametrize(
    ("name", "lie"),
    [("m-Q4_K_M.gguf", {"lfs": {"sha256": "0" * 64, "size": len(BIG), "pointerSize": 1}}),
     ("tiny.gguf", {"blobId": "0" * 40})],
)  # fmt: skip
def test_a_wrong_checksum_leaves_nothing(tmp_path: Path, hub: FakeHub, name: str, lie: dict[str, Any]) -> None:
    hub.files["tiny.gguf"] = b"small"
    hub.lie[name] = lie
    message = refusal(store_of(tmp_path, hub), f"hf:org/tiny:{name}").message
    assert f"{name} has checksum" in message and "the hub announces 0000" in message
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"] == []


def test_a_file_without_a_checksum_is_not_taken(tmp_path: Path, hub: FakeHub) -> None:
    hub.files["tiny.gguf"] = b"small"
    hub.lie["tiny.gguf"] = {"blobId": None}
    assert "announces no checksum of tiny.gguf" in refusal(store_of(tmp_path, hub), "hf:org/tiny:tiny.gguf").message


def test_another_size_than_announced(tmp_path: Path, hub: FakeHub) -> None:
    hub.lie["m-Q4_K_M.gguf"] = {"size": len(BIG) + 5}
    assert "did not come whole" in refusal(store_of(tmp_path, hub), "hf:org/tiny:Q4_K_M").message


def test_revisions(tmp_path: Path, hub: FakeHub) -> None:
    store = store_of(tmp_path, hub)
    path = store.pull(f"hf:org/tiny@{COMMIT}:Q4_K_M")
    assert COMMIT[:16] in path.parts
    error = refusal(store, "hf:org/tiny@dev:Q4_K_M")
    assert (error.message, error.code) == ("org/tiny has no revision 'dev'.", "not_found")
    assert store.resolve(f"hf:org/tiny@{COMMIT}:Q4_K_M") == path


def test_what_is_pulled_stays_when_the_repository_moves_on(tmp_path: Path, hub: FakeHub) -> None:
    store = store_of(tmp_path, hub)
    old = store.pull("hf:org/tiny:Q4_K_M")
    hub.commit, hub.files["m-Q4_K_M.gguf"] = "f" * 40, BIG[::-1]
    assert store.pull("hf:org/tiny:Q4_K_M") == old
    assert store.pull("hf:org/tiny@main:Q4_K_M").read_bytes() == BIG[::-1]
    assert old.read_bytes() == BIG


@pytest.mark.parametrize(
    ("refuse", "code", "said"),
    [
        ((403, "GatedRepo"), "gated", "is gated: accept its terms on its page at http://127"),
        ((401, "RepoNotFound"), "not_found", "has no model org/tiny, or it is private"),
        ((500, "Boom"), "hub_error", "refused hf:org/tiny: "),
    ],
)
def test_refusals_of_the_hub(tmp_path: Path, hub: FakeHub, refuse: tuple[int, str], code: str, said: str) -> None:
    hub.refuse = refuse
    error = refusal(store_of(tmp_path, hub), "hf:org/tiny")
    assert error.code == code and said in error.message


def test_an_unknown_repository(tmp_path: Path, hub: FakeHub) -> None:
    error = refusal(store_of(tmp_path, hub), "hf:org/other")
    assert (error.code, "The hub has no model org/other" in error.message) == ("not_found", True)


def test_without_a_network(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]  # bound and not listening: nobody answers there
        error = refusal(Store(tmp_path, catalog=[], hub_endpoint=f"http://127.0.0.1:{port}"), "hf:org/tiny")
    assert error.code == "offline" and "cannot be reached" in error.message


def test_a_hub_that_names_no_commit(tmp_path: Path, hub: FakeHub) -> None:
    hub.commit = "../../outside"
    assert "The hub names no commit of hf:org/tiny" in refusal(store_of(tmp_path, hub), "hf:org/tiny").message


def test_files_that_are_not_there_are_answered_with_those_that_are(tmp_path: Path, hub: FakeHub) -> None:
    store = store_of(tmp_path, hub)
    message = refusal(store, "hf:org/tiny:Q2_K").message
    assert message.startswith("org/tiny has no GGUF file 'Q2_K'. There are: m-Q4_K_M.gguf (1 MB), m-Q8_0.gguf (1 MB), ")
    assert "mmproj" not in message and PARTS[1] not in message
    several = refusal(store, "hf:org/tiny").message
    assert several.startswith("hf:org/tiny holds several models; add one as hf:org/tiny:FILE. There are: m-Q4_K_M.gguf")
    assert (
        "'m-q8' fits several files of org/tiny. There are: m-Q8_0.gguf (1 MB), split/"
        in refusal(store, "hf:org/tiny:m-q8").message
    )


@pytest.mark.parametrize("name", ["hf:", "hf:tiny", "hf:org/tiny/more", "hf:org/..", "hf:org/tiny:a:b", "hf:org/tiny@"])
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    for ask in (Store(tmp_path).pull, Store(tmp_path).resolve):
        with pytest.raises(StoreError, match="is not a model of the hub; write hf:ORG/REPO"):
            ask(name)


def test_names() -> None:
    for text in ("hf:org/tiny", "hf:org/tiny:a/b.gguf", "hf:org/tiny@refs/pr/1", "hf:org/tiny@v1.0:Q4_K_M"):
        assert str(parse_name(text)) == text
    assert parse_name("hf:org/tiny@v1:f") == HubName("org/tiny", "v1", "f")


def files_of(*names: str) -> dict[str, HubFile]:
    return {name: HubFile(name, 1, None, "0") for name in names}


def chosen(text: str, *names: str) -> list[str]:
    return [file.name for file in choose(parse_name(text), files_of(*names)).files]


def test_which_files_a_name_means() -> None:
    folder = ("config.json", "tokenizer.json", "model.safetensors")
    assert chosen("hf:o/r", *folder, "model-00001-of-00002.safetensors", "other.safetensors") == [*folder]
    templates = ("chat_template.jinja", "chat_template.json", "additional_chat_templates/tool_use.jinja")
    others = ("additional_chat_templates/README.md", "additional_chat_templates/a/b.jinja", "x.jinja")
    assert sorted(chosen("hf:o/r", *folder, *templates, *others)) == sorted([*folder, *templates])
    assert chosen("hf:o/r", "config.json", "weights.safetensors") == ["config.json", "weights.safetensors"]
    assert chosen("hf:o/r", "config.json", "a.gguf") == ["a.gguf"]
    assert chosen("hf:o/r", "config.json", "onnx/x.safetensors", "a.gguf") == ["a.gguf"]
    assert chosen("hf:o/r:a.gguf", *folder, "a.gguf") == ["a.gguf"]


@pytest.mark.parametrize(
    ("text", "names", "said"),
    [
        (
            "hf:o/r",
            ("README.md",),
            "hf:o/r holds neither GGUF files nor config.json with safetensors. There are: README",
        ),
        ("hf:o/r", (), "It has no files."),
        (
            "hf:o/r:a",
            ("a-00001-of-00003.gguf", "a-00003-of-00003.gguf"),
            "lacks 1 of the 3 parts of this model, such as",
        ),
        ("hf:o/r:x", ("../x.gguf", "/x.gguf", "a\\x.gguf"), "has no GGUF file 'x'. It has no files."),
        ("hf:o/r", tuple(f"{k}.gguf" for k in range(30)), "and 10 more"),
    ],
)
def test_repositories_that_do_not_have_it(text: str, names: tuple[str, ...], said: str) -> None:
    with pytest.raises(StoreError) as caught:
        choose(parse_name(text), files_of(*names))
    assert said in caught.value.message


def test_the_store_costs_no_start_up_time() -> None:
    """What only pulling or loading needs is imported then."""
    heavy = "{'huggingface_hub', 'numpy', 'tokenizers'} & set(sys.modules)"
    code = f"import sys, tailrace.engine.store.store; print({heavy})"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout == "set()\n"
