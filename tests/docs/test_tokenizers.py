"""The table of tokenizers in docs/models.md is what the code and its tests say.

After a change: `python -m tests.docs.test_tokenizers` writes the section anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from tailrace.text.pretokenizers import PIECES, PRE_TOKENIZERS
from tests.text.ggml_vocab import PROVEN

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
SECTION = re.compile(r"(<!-- tokenizers: .*? -->\n)(.*?)(?=\n## |\Z)", re.DOTALL)
GOLDEN = {"smollm"}  # tests/text/test_golden_ids.py

TEXT = """Which tokenizer a GGUF file has is read from its keys `tokenizer.ggml.model` and, for byte-level BPE,
`tokenizer.ggml.pre`. A name that is not in this table is refused with the names that are: a guess would answer badly
without saying so.
"""
AFTER = """
*Original ids*: the same ids for the 46 texts that come with the vocabularies in llama.cpp's source, made with each
model's original tokenizer: `python -m tests.text.ggml_vocab DIR`, last run with those in `vendor/llama.cpp/models` of
`pip download --no-deps --no-binary :all: llama-cpp-python` 0.3.36. (Of the 50 for `qwen35` three are left out, whose
ids were made without bringing the text to normal form C.) *Golden ids*: the same ids as another implementation gives
for the same file (tests/text/test_golden_ids.py). *Words*: no vocabulary was at hand; the published expression is in
the table, and tests/text/test_pretokenizers.py holds the words that expressions of its kind make.

A model folder's `tokenizer.json` is run by the `tokenizers` library itself, whatever is in it, if its decoder is
ByteLevel, ByteFallback, Metaspace or one that replaces U+2581. Start and end tokens come from `tokenizer_config.json`,
`generation_config.json` and `config.json`. WordPiece (BERT) and Unigram (T5) GGUF files are not read.

Text is encoded as the model's own tokenizer does: some bring it to Unicode's normal form C first (`command-r`, `mpt`,
`olmo`, `qwen2`, `qwen35`), so that an answer which repeats a prompt may spell an accent in another way.
"""


def how(name: str) -> str:
    proven = [PRE_TOKENIZERS[other] for other in PROVEN["gpt2"]]
    if name in PROVEN["gpt2"] or name in GOLDEN:
        return "original ids" if name in PROVEN["gpt2"] else "golden ids"
    same = next((other for other in PROVEN["gpt2"] if PRE_TOKENIZERS[other] is PRE_TOKENIZERS[name]), None)
    return f"the same as `{same}`" if PRE_TOKENIZERS[name] in proven and same else "words"


def table() -> str:
    lines = ["| model | pre | checked by |", "|---|---|---|"]
    rows: dict[str, list[str]] = {}
    for name in sorted(PRE_TOKENIZERS):
        rows.setdefault(how(name), []).append(f"`{name}`")
    lines += [f"| `gpt2` (byte-level BPE) | {', '.join(rows[key])} | {key} |" for key in sorted(rows)]
    lines += ["| `llama` (pieces merged by score, byte fallback) | any | original ids, golden ids (`gemma3:270m`) |"]
    lines += ["| `gemma4` (pieces merged by rank, byte fallback) | any | original ids |"]
    assert set(PIECES) == set(PROVEN) - {"gpt2"}
    return "\n".join(lines)


def section() -> str:
    return f"{TEXT}\n{table()}\n{AFTER}"


def test_the_section_is_what_the_code_says() -> None:
    found = SECTION.search(PAGE.read_text("utf-8"))
    assert found is not None
    assert found.group(2).strip() == section().strip()


def test_what_composes_is_named() -> None:
    composing = {name for name, scheme in PRE_TOKENIZERS.items() if scheme.composes}
    assert composing == {"command-r", "mpt", "olmo", "qwen2", "qwen35"}


if __name__ == "__main__":
    page = PAGE.read_text("utf-8")
    if not SECTION.search(page):
        page += "\n## Tokenizers\n\n<!-- tokenizers: checked by tests/docs/test_tokenizers.py -->\n"
    PAGE.write_text(SECTION.sub(lambda found: found.group(1) + section(), page), "utf-8")
