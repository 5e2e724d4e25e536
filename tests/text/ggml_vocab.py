"""Compares tokenizers id for id with the vocabularies that llama.cpp's source brings along.

    python -m tests.text.ggml_vocab DIR

DIR holds `ggml-vocab-NAME.gguf` with `.inp` (texts) and `.out` (their ids, made with each model's original tokenizer),
as in `models/` of that source, which is part of the source package of `llama-cpp-python`. Prints one line a vocabulary
and ends with 1 if any differs. Nothing of it is kept in this repository.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from unicodedata import normalize

from tailrace.engine.weights.gguf import GgufFile
from tailrace.errors import ModelFileError
from tailrace.text.bytelevel import ByteLevelScheme
from tailrace.text.pretokenizers import scheme_of
from tailrace.text.tokenizer import Tokenizer

# What was the same when this was last run, by the name of the vocabulary; docs/models.md tells it.
PROVEN = {
    "gpt2": (
        "command-r",
        "deepseek-coder",
        "deepseek-llm",
        "falcon",
        "gpt-2",
        "llama-bpe",
        "mpt",
        "qwen2",
        "qwen35",
        "refact",
        "starcoder",
    ),
    "llama": ("llama-spm", "phi-3"),
    "gemma4": ("gemma-4",),
}
SEPARATOR = "\n__ggml_vocab_test__\n"


def cases(path: Path) -> list[tuple[str, list[int]]]:
    """(text, ids) of one vocabulary."""
    texts = Path(f"{path}.inp").read_bytes().decode().removesuffix(SEPARATOR).split(SEPARATOR)
    lines = Path(f"{path}.out").read_text("utf-8").splitlines()
    return [(text, [int(i) for i in line.split()]) for text, line in zip(texts, lines, strict=True)]


def comparable(path: Path, metadata: Mapping[str, object]) -> list[tuple[str, list[int]]]:
    """Without texts that the model's own tokenizer brings to normal form C: some ids were made without."""
    scheme = scheme_of(metadata)
    composes = isinstance(scheme, ByteLevelScheme) and scheme.composes
    return [(text, ids) for text, ids in cases(path) if not composes or normalize("NFC", text) == text]


def differences(tokenizer: Tokenizer, texts: list[tuple[str, list[int]]]) -> Iterator[str]:
    for text, expected in texts:
        ids = tokenizer.encode(text, add_special=False, parse_special=False).tolist()
        if ids != expected:
            at = next((i for i, pair in enumerate(zip(ids, expected, strict=False)) if pair[0] != pair[1]), len(ids))
            yield f"    {text[:40]!r}: at {at} {ids[at : at + 6]} instead of {expected[at : at + 6]}"
        elif tokenizer.decode(ids) != text:
            yield f"    {text[:40]!r}: comes back as {tokenizer.decode(ids)[:40]!r}"


def name_of(path: Path) -> str:
    return path.name.removeprefix("ggml-vocab-").removesuffix(".gguf")


def report(path: Path) -> tuple[bool, bool]:
    """(all the same, something differs)"""
    metadata = GgufFile(path).metadata
    names = [str(metadata.get(f"tokenizer.ggml.{key}")) for key in ("model", "pre")]
    label = f"{name_of(path):<16} {' / '.join(names):<24}"
    if not Path(f"{path}.inp").exists():
        print(label, "no texts to compare with")
        return False, False
    try:
        texts = comparable(path, metadata)
        found = list(differences(Tokenizer.from_gguf(metadata), texts))
    except ModelFileError as error:
        print(label, f"not read: {error.message}")
        return False, False
    print(label, f"{len(found)} differ" if found else "all the same", f"({len(texts)} of {len(cases(path))} texts)")
    print(*found, sep="\n", end="\n" if found else "")
    return not found, bool(found)


def main(folder: Path) -> int:
    paths = sorted(folder.glob("ggml-vocab-*.gguf"))
    if not paths:
        print(f"{folder} holds no ggml-vocab-*.gguf", file=sys.stderr)
        return 2
    results = {name_of(path): report(path) for path in paths}
    same = {name for name, (is_same, _) in results.items() if is_same}
    claimed = {name for names in PROVEN.values() for name in names}
    if same != claimed:
        print("PROVEN must be changed:", *sorted(same ^ claimed), file=sys.stderr)
    return 1 if same != claimed or any(differs for _, differs in results.values()) else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
