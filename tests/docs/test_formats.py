"""The table of formats in docs/models.md is what the code says, row for row.

After a change: `python -m tests.docs.test_formats` writes the section anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from tailrace.engine.weights.dequant import AFFINE4, DEQUANTIZABLE
from tailrace.engine.weights.gguf import _TENSOR_TYPES as GGUF
from tailrace.engine.weights.gguf import VERSIONS
from tailrace.engine.weights.pack import STORED_EMBEDDINGS
from tailrace.engine.weights.safetensors import _TENSOR_TYPES as SAFETENSORS

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
SECTION = re.compile(r"(<!-- formats: .*? -->\n)(.*?)(?=\n## |\Z)", re.DOTALL)


def table() -> str:
    gguf = {kind.name: kind for kind in GGUF.values()}
    lines = [
        "| type | bits a value | GGUF | safetensors | matrices are kept as | embedding is kept as |",
        "|---|---|---|---|---|---|",
    ]
    for name in DEQUANTIZABLE:
        kind = gguf[name]
        cells = (
            name,
            f"{kind.size * 8 / kind.block:g}",
            "yes",
            "yes" if name in SAFETENSORS else "-",
            "their own 4 bits, or int8" if name in AFFINE4 else "int8",
            STORED_EMBEDDINGS.get(name, "bf16"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def refused(kinds: dict[str, object]) -> str:
    return ", ".join(sorted(name for name in kinds if name not in DEQUANTIZABLE))


def section() -> str:
    versions = " and ".join(map(str, VERSIONS))
    return f"""\
GGUF versions {versions}, little-endian, in one file or several. Safetensors, in one file or several with an index.
Numbers of every type are read bit for bit as the `gguf` package reads them; packing then rounds them to what the
kernels use (docs/decisions/001-arithmetic.md), or to bf16 with `--weights bf16`.

{table()}

Other types are refused by name. GGUF: {refused({kind.name: kind for kind in GGUF.values()})}.
Safetensors: {refused(dict(SAFETENSORS))}.
Weights in pickle files (`.bin`, `.pt`) are not read, as reading those can run code. A file that cannot be read says
why: what is missing or cut off and by how many bytes, which tensor has which type, an unknown version, big-endian
order. Nothing is allocated because a header asks for it.
"""


def test_the_page_says_what_the_code_does() -> None:
    found = SECTION.search(PAGE.read_text("utf-8"))
    assert found is not None
    assert found[2] == section()


if __name__ == "__main__":
    text = PAGE.read_text("utf-8")
    PAGE.write_text(SECTION.sub(lambda found: found[1] + section(), text), "utf-8")
