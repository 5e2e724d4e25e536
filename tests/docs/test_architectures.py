"""The table of architectures in docs/models.md is what the declarations say of a tiny checkpoint of each.

After a change: `python -m tests.docs.test_architectures` writes the section anew.
"""

from __future__ import annotations

import re
import tempfile
import textwrap
from pathlib import Path

from tailrace.engine.models.base import ModelSpec
from tailrace.engine.models.hf import FAMILIES
from tailrace.engine.models.registry import ARCHITECTURES, describe
from tailrace.engine.weights.gguf import GgufFile
from tests.architectures import write_tiny
from tests.reference.transformers_check import CASES, KL_BOUND, TOKENS

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
COMPARED = """\
It makes a tiny random checkpoint of each case there and holds the engine's logits with bf16 weights to those in
float32, for the folder with a configuration as models are published with and for the folder as `transformers` saves it.
The mean KL over {tokens} positions stays under {bound:g} nats; another rope, window or scale makes at least three times
that. Cases: {cases}. One thing differs by intent: `transformers` 5 does not apply `attn_logit_softcapping` to Gemma 3,
whose published files leave it out.
"""
SECTION = re.compile(r"(<!-- architectures: .*? -->\n)(.*?)(?=\n## |\Z)", re.DOTALL)
ACTIVATIONS = {"silu": "SiLU", "gelu": "GELU (tanh)"}


def departures(spec: ModelSpec) -> str:
    """How a declaration departs from the plain decoder, in words."""
    block, found = spec.blocks[0], []
    if block.q_bias:
        found.append("biases on q, k, v")
    if block.q_norm:
        found.append("norm of each head of q and k")
    if block.attn_out_norm:
        found.append("norm behind each sublayer")
    if spec.embedding_scale != 1:
        found.append("scaled embedding")
    if any(layer.window for layer in spec.blocks):
        found.append("sliding windows in some layers")
    if len(spec.ropes) > 1:
        found.append("two rope bases")
    return "; ".join(found) or "-"


def row(architecture: str, spec: ModelSpec) -> str:
    hub = ", ".join(f"`{name}`" for name, family in FAMILIES.items() if family.architecture == architecture)
    rope = "pairs (2i, 2i+1)" if spec.ropes[0].interleaved else "halves (i, i+d/2)"
    return f"| `{architecture}` | {hub} | {ACTIVATIONS[spec.activation]} | {departures(spec)} | {rope} |"


def section() -> str:
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            row(name, describe(GgufFile(write_tiny(name, Path(folder) / f"{name}.gguf"))))
            for name in sorted(ARCHITECTURES)
        ]
    table = "\n".join(rows)
    text = COMPARED.format(tokens=TOKENS, bound=KL_BOUND, cases="; ".join(CASES))
    compared = textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)
    return f"""\
An architecture is a short declaration in `src/tailrace/engine/models/`: dimensions, and how its decoder departs from
the plain one (RMSNorm before attention and feed-forward, grouped queries, rope, a gated feed-forward, no biases). It is
read from GGUF metadata; a folder's `config.json` is brought to the same terms first.

| GGUF architecture | `architectures` in config.json | activation | besides the plain decoder | rope rows in GGUF |
|---|---|---|---|---|
{table}

All of them: heads of any size that is a multiple of 32, tied and untied heads, rope scaled by `linear`, `yarn` (with
its attention factor) or frequency factors (Llama 3.1). Gemma 3 files may set a scale of attention scores, and softcaps
of scores and logits. Each is held against a NumPy forward pass written from its published configuration
(`tests/reference/`), with tiny random checkpoints. Mixtures of experts and other architectures are refused by name, and
so is a tensor that a declaration does not know: leaving it out would give wrong answers.

Beside that they are compared with `transformers`, which must be installed by hand (the command says how):

    python -m tests.reference.transformers_check --python transformers-env/bin/python

{compared}
"""


def test_the_page_says_what_the_code_says() -> None:
    found = SECTION.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None
    assert found[2] == section()


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(SECTION.sub(lambda match: match[1] + section(), page), encoding="utf-8")
