"""What an architecture is to the executor: dimensions, rope, and which tensor plays which part.

Owns the checks that every architecture shares: dimensions the executor can run, tensors present with the right
shapes and readable types, none left over that would silently be ignored. Knows no model by name.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.engine.models.metadata import Metadata
from tailrace.engine.models.rope import Rope
from tailrace.engine.weights.dequant import DEQUANTIZABLE
from tailrace.frozen import frozen
from tailrace.types import Pooling

MAX_CONTEXT = 1 << 20  # tokens; the rope tables are computed for all of them


@frozen
class LayerTensors:
    """Tensor names of one decoder layer: pre-norm attention, then a pre-norm gated feed-forward; and how it attends.

    None: the layer has no such part. `window` is how many keys a query sees, itself included (0: all of them), `rope`
    indexes the model's.
    """

    attn_norm: str
    q: str
    k: str
    v: str
    o: str
    ffn_norm: str
    gate: str
    up: str
    down: str
    q_bias: str | None = None
    k_bias: str | None = None
    v_bias: str | None = None
    q_norm: str | None = None  # of each head, before rope
    k_norm: str | None = None
    attn_out_norm: str | None = None  # behind the sublayer, before the residual sum
    ffn_out_norm: str | None = None
    window: int = 0
    rope: int = 0


@dataclass(frozen=True, slots=True)  # an encoder's inherits from it
class ModelSpec:
    """The declaration of one model. `head` is the embedding's tensor when the two are tied.

    `attention_scale` multiplies scores (0: 1 / sqrt(head_dim)); a softcap turns x into cap * tanh(x / cap) (0: none).
    """

    architecture: str
    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    norm_eps: float
    ropes: tuple[Rope, ...]
    embedding: str
    final_norm: str
    head: str
    blocks: tuple[LayerTensors, ...]
    activation: str = "silu"  # or "gelu", in its tanh form
    embedding_scale: float = 1.0
    attention_scale: float = 0.0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    pooling: Pooling = Pooling.MEAN  # how the vector of a text is made of its tokens' hidden states

    @property
    def tied(self) -> bool:
        return self.head == self.embedding

    @property
    def kv_layers(self) -> int:
        """Layers whose keys and values are kept."""
        return self.layers

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor the executor needs, with its shape in NumPy order."""
        q_rows, kv_rows = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str | None, tuple[int, ...]] = {
            self.embedding: (self.vocab, self.hidden),
            self.head: (self.vocab, self.hidden),
            self.final_norm: (self.hidden,),
        }
        shapes |= {rope.factors: (rope.dim // 2,) for rope in self.ropes}
        for block in self.blocks:
            shapes |= {
                block.attn_norm: (self.hidden,),
                block.q: (q_rows, self.hidden),
                block.k: (kv_rows, self.hidden),
                block.v: (kv_rows, self.hidden),
                block.o: (self.hidden, q_rows),
                block.ffn_norm: (self.hidden,),
                block.gate: (self.ffn, self.hidden),
                block.up: (self.ffn, self.hidden),
                block.down: (self.hidden, self.ffn),
                block.q_bias: (q_rows,),
                block.k_bias: (kv_rows,),
                block.v_bias: (kv_rows,),
                block.q_norm: (self.head_dim,),
                block.k_norm: (self.head_dim,),
                block.attn_out_norm: (self.hidden,),
                block.ffn_out_norm: (self.hidden,),
            }
        return {name: shape for name, shape in shapes.items() if name is not None}


def check_dimensions(spec: ModelSpec, metadata: Metadata) -> None:
    """Refuse what the executor's tiles cannot hold."""
    multiples = (
        ("hidden size", spec.hidden, 64),
        ("feed-forward size", spec.ffn, 64),
        ("head size", spec.head_dim, 32),
        ("width of all query heads", spec.heads * spec.head_dim, 64),
    )
    for what, value, multiple in multiples:
        if value % multiple:
            raise metadata.error(f"the {what} is {value}; the executor needs a multiple of {multiple}.")
    if spec.heads % spec.kv_heads:
        raise metadata.error(f"{spec.heads} query heads do not share {spec.kv_heads} key heads evenly.")
    if spec.context > MAX_CONTEXT:
        raise metadata.error(f"its context is {spec.context} tokens; up to {MAX_CONTEXT} can be run.")
    for rope in spec.ropes:
        if rope.dim % 2 or rope.dim > spec.head_dim:
            raise metadata.error(f"rope covers {rope.dim} values; an even number up to {spec.head_dim} is needed.")


def check_tensors(spec: ModelSpec, metadata: Metadata, ignored: tuple[str, ...] = ()) -> None:
    """Refuse missing, misshapen, unreadable and unexpected tensors; `ignored` lists name endings without effect."""
    found = metadata.file.tensors
    expected = spec.tensor_shapes()
    for name, shape in expected.items():
        if name not in found:
            raise metadata.error(f"tensor {name!r} is missing; a {spec.architecture} model has it.")
        if found[name].shape != shape:
            raise metadata.error(
                f"tensor {found[name].name!r} has shape {found[name].shape}; the metadata says {shape}."
            )
        if found[name].type.name not in DEQUANTIZABLE:
            raise metadata.error(
                f"tensor {found[name].name!r} has type {found[name].type.name}; readable types are "
                f"{', '.join(DEQUANTIZABLE)}. Use a Q4_1, Q4_0, Q8_0, F16 or BF16 version of this model."
            )
    extra = [name for name in found if name not in expected and not name.endswith(ignored)]
    if extra:
        raise metadata.error(
            f"it has {len(extra)} tensor(s) that a plain {spec.architecture} model does not, such as {extra[0]!r}; "
            "leaving them out would give wrong answers."
        )
