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

SEPARATOR = "\n__ggml_vocab_test__\n"


def cases(path: Path) -> list[tuple[str, list[int]]]:
    """(text, ids) of one vocabulary."""
    texts = Path(f"{path}.inp").read_bytes().decode().removesuffix(SEPARATOR).split(SEPARATOR)
    lines = Path(f"{path}.out").read_text("utf-8").splitlines()
    return [(text, [int(i) for i in line.split()]) for text, line in zip(texts, lines, strict=True)]


def differences(path: Path, metadata: Mapping[str, object]) -> Iterator[str]:
    """Nothing is said about texts that the model's own tokenizer brings to normal form C and whose ids were made
    without."""
    tokenizer = Tokenizer.from_gguf(metadata)
    scheme = scheme_of(metadata)
    for text, expected in cases(path):
        if isinstance(scheme, ByteLevelScheme) and scheme.composes and normalize("NFC", text) != text:
            continue
        ids = tokenizer.encode(text, add_special=False, parse_special=False).tolist()
        if ids != expected:
            at = next((i for i, pair in enumerate(zip(ids, expected, strict=False)) if pair[0] != pair[1]), len(ids))
            yield f"    {text[:40]!r}: at {at} {ids[at : at + 6]} instead of {expected[at : at + 6]}"
        elif tokenizer.decode(ids) != text:
            yield f"    {text[:40]!r}: comes back as {tokenizer.decode(ids)[:40]!r}"


def report(path: Path) -> bool:
    metadata = GgufFile(path).metadata
    names = [str(metadata.get(f"tokenizer.ggml.{key}")) for key in ("model", "pre")]
    label = f"{path.name.removeprefix('ggml-vocab-').removesuffix('.gguf'):<16} {' / '.join(names):<24}"
    if not Path(f"{path}.inp").exists():
        print(label, "no texts to compare with")
        return True
    try:
        found = list(differences(path, metadata))
    except ModelFileError as error:
        print(label, f"not read: {error.message}")
        return True
    print(label, f"{len(found)} differ" if found else "all the same", f"({len(cases(path))} texts)")
    print(*found, sep="\n", end="\n" if found else "")
    return not found


def main(folder: Path) -> int:
    paths = sorted(folder.glob("ggml-vocab-*.gguf"))
    if not paths:
        print(f"{folder} holds no ggml-vocab-*.gguf", file=sys.stderr)
        return 2
    return 0 if all([report(path) for path in paths]) else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
