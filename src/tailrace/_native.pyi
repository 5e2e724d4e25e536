"""The native executor (csrc/). Two GIL-free calls a step: `Model.forward` and `Model.sample`.

Arrays are C-contiguous; a wrong dtype or shape raises ValueError naming the argument.
"""

from collections.abc import Sequence
from mmap import mmap
from typing import Any, Literal, NotRequired, TypedDict, overload

import numpy as np
import numpy.typing as npt

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]

BLOCK_TOKENS: int  # tokens in a KV block (64)
SEGMENT_TOKENS: int  # keys in one attention segment; partial results are merged in segment order

def cpu_features() -> dict[str, bool]: ...
def variants() -> list[str]:
    """Kernel variants this CPU can run, best first ("amx", "avx512", "avx2", "portable")."""

def test_variants() -> list[str]:
    """Those of `variants()` plus the ones that exist only to be tested ("amx-emulated", "avx512-emulated")."""

def read_texts(data: mmap | bytes, position: int, count: int) -> tuple[list[str], int]:
    """Strings behind their lengths (little endian, 64 bits), and the position behind them; fewer than `count` when one
    reaches beyond the end. What is not UTF-8 becomes U+FFFD."""

class Pieces:
    """Score-merged BPE (text/pieces.py). `texts`: of all tokens one after another, UTF-8; `ends`: where each ends;
    `roles`: bits of PieceRole in csrc/pieces.h; `bytes`: the token of each byte value, or empty, then `unknown`."""

    def __init__(
        self,
        texts: bytes,
        ends: npt.NDArray[np.int64],
        scores: F32,
        roles: U8,
        bytes: I32,
        unknown: int,
        space_prefix: bool,
    ) -> None: ...
    def encode(self, text: bytes, parse: bool) -> I32:
        """Without the GIL. `parse`: the text of a control token is that token."""

class ModelSpec(TypedDict):
    layers: int
    hidden: int  # multiple of 64
    heads: int
    kv_heads: int
    head_dim: int  # multiple of 32
    ffn: int  # multiple of 64
    vocab: int
    norm_eps: float
    max_positions: int
    # How the decoder departs from the plain one.
    activation: NotRequired[str]  # of the gated feed-forward: "silu" or "gelu" (tanh form)
    embedding_scale: NotRequired[float]
    attention_scale: NotRequired[float]  # 0: 1 / sqrt(head_dim)
    attention_softcap: NotRequired[float]  # scores become cap * tanh(score / cap); 0: they do not
    logit_softcap: NotRequired[float]
    windows: NotRequired[list[int]]  # by layer: keys a query sees, itself included; 0: all
    ropes: NotRequired[list[int]]  # by layer: the rope table it uses
    encoder: NotRequired[bool]  # every token sees all of its sequence; see csrc/executor.h

class Team:
    """A persistent thread team; the caller of a native call is its member 0.

    `threads` is their number, or one for each rank. Models divide themselves among ranks (tensor parallel). The threads
    of rank i, and a caller while it is member 0, stay on the CPUs `cpus[i]`; without, the system places them.
    """
    @overload
    def __init__(self, threads: int) -> None: ...
    @overload
    def __init__(self, threads: Sequence[int], cpus: Sequence[Sequence[int]] = ()) -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def ranks(self) -> list[int]:
        """Threads of each rank."""

def preferred_format(variant: str, source: str) -> str:
    """Packed format the variant runs fastest for weights whose source is "affine4" or "other": "nib4" or "int8"."""

def pack_int8(variant: str, w: npt.NDArray[np.int8], wide: I32) -> U8:
    """Pack canonical int8 weights [N, K] for a variant. `wide` lists the 16-bit input channels, ascending."""

def pack_nib4(variant: str, q: U8, a: npt.NDArray[np.int16], b: npt.NDArray[np.int16], wide: I32) -> U8:
    """Pack 4-bit affine weights: q [N, K] in 0..15, a and b [N, K/32]; the int8 weight is (a*q + b) >> 6."""

def pack_bf16(variant: str, w: npt.NDArray[np.uint16]) -> U8: ...

class Model:
    def __init__(self, variant: str, spec: ModelSpec, team: Team) -> None: ...
    def again(self, team: Team) -> Model:
        """This one's parts, once finished, run by another team of the same ranks. Nothing that a step writes is shared:
        a step of this one may go on, or never end."""
    def set_embedding(self, rows: npt.NDArray[np.generic], fmt: str) -> None:
        """Embedding rows: fmt "f32" [V, H] float32, "f16" or "bf16" [V, H] uint16, "q8_0" [V, bytes] as in GGUF."""
    def set_rope(self, cos: F32, sin: F32, table: int = 0) -> None:
        """[max_positions, rope_dim/2]; half-split pairs (i, i + rope_dim/2). `table` is 0 to 7."""
    def set_positions(self, rows: F32) -> None:
        """[max_positions, hidden], added to the embedding: of an encoder."""
    def set_norm(self, name: str, weight: F32) -> None:
        """ "attn.{layer}", "ffn.{layer}", "final"; optional: "attn_out.{layer}", "ffn_out.{layer}" (behind a sublayer,
        before the residual sum) and, [head_dim], "q.{layer}", "k.{layer}" (of each head, before rope).

        Of an encoder: "embed", "attn_out.{layer}", "ffn_out.{layer}" (behind the sum), nothing else."""
    def set_bias(self, name: str, bias: F32) -> None:
        """ "qkv.{layer}", rows in the order of the linear layer; optional. Of an encoder also "o.{layer}",
        "up.{layer}", "down.{layer}", and those of its norms under their names."""
    def set_linear(self, name: str, fmt: str, n: int, k: int, packed: U8, scale: F32 | None, wide: I32 | None) -> None:
        """ "qkv.{layer}", "o.{layer}", "gate_up.{layer}" (an encoder's: "up.{layer}"), "down.{layer}", "head". fmt
        "int8", "nib4" or "bf16".

        qkv rows: all query heads, key heads, value heads. gate_up rows: 16 gate, the 16 matching up, 16 gate, ...
        `packed` is copied (into huge pages, which the weight stream needs) and may be freed afterwards.
        """
    def finish(self) -> None:
        """Check that every part was set; raises ValueError naming what is missing."""
    def forward(
        self,
        kv: KvCache,
        token_ids: I32,
        row_starts: I32,
        first_positions: I32,
        block_tables: I32,
        logit_rows: I32,
        hidden_only: int = 0,
        adapters: list[Adapter | None] | None = None,
    ) -> None:
        """One step over a ragged batch; logits stay native until the next call.

        token_ids [T]; row_starts [S+1] cuts the rows into sequences; first_positions [S] is the absolute
        position of each sequence's first row; block_tables [S, B] lists KV blocks (entries past the need are
        ignored); logit_rows [R] are the rows that need logits, ascending; the last `hidden_only` of them get hidden
        states only. An encoder gives no logits, and computes whole sequences. adapters [S] are added to the weights
        for each sequence's rows. Releases the GIL.
        """
    def begin(
        self,
        kv: KvCache,
        token_ids: I32,
        row_starts: I32,
        first_positions: I32,
        block_tables: I32,
        logit_rows: I32,
        hidden_only: int = 0,
        adapters: list[Adapter | None] | None = None,
    ) -> None:
        """As `forward`, but returns while the team's other threads compute. `settle` joins them; so does everything
        else of this model, and whatever runs on its team. The arrays may be changed at once, `kv` not before."""
    def settle(self) -> None:
        """Return when the step that `begin` started is computed. Releases the GIL."""
    timed: bool  # count the time of a step's parts; a timed step is computed when `begin` returns
    def logits(self) -> F32:
        """A copy of the last forward's logits [R, vocab]."""
    def hidden(self) -> F32:
        """A copy of the final normed hidden state of the last forward's logit rows [R, hidden], for embeddings."""
    def sample(
        self,
        rows: I32,
        temperature: F32,
        top_k: I32,
        top_p: F32,
        min_p: F32,
        typical_p: F32,
        key: npt.NDArray[np.uint64],
        position: I32,
        logprobs: I32,
        penalties: F32,
        history_starts: I32,
        history_ids: I32,
        history_counts: I32,
        bias_starts: I32,
        bias_ids: I32,
        bias_values: F32,
        mask: npt.NDArray[np.uint32] | None = None,
        mask_rows: I32 | None = None,
    ) -> tuple[I32, F32, I32, F32]:
        """Choose one token for each of S rows; rows[i] indexes the last forward's logit rows.

        key is a mix of seed and choice index; the noise of a token is a function of (key, position, token id).
        temperature 0 is greedy, ties to the lowest id. top_k 0, top_p 1, min_p 0, typical_p 1 are off. logprobs[i] is
        -1 for none, else the number of alternatives. penalties [S, 3]: presence, frequency, repetition. history (CSR):
        ids seen by the row, each once; counts are generated occurrences (0: only in the prompt). bias (CSR) is
        added to logits before everything else; -inf forbids. mask [S, ceil(V/32)] bit 1 = allowed;
        with mask_rows [S] it is [M, ceil(V/32)], and mask_rows[i] is row i's place in it or -1 for none.
        Returns tokens [S], logprobs [S], top ids [S, L], top logprobs [S, L] (L = max logprobs; unused cells -1/-inf);
        log-probabilities are of the raw logits; where logprobs[i] is -2 - m, of the logits with bias, penalties and
        mask, with m alternatives. Releases the GIL.
        """
    def counters(self) -> dict[str, float]:
        """Seconds by part of timed steps since the last call; of all steps, their number and the time in `sample`.

        Parts: embed (with the first norm), norm, qkv, rope (with append), attention, merge (with quantize), o, gate_up,
        activation (quantize), down, head, sample; "wait" is the part of them spent waiting for other threads.
        """

class Adapter:
    """Low-rank additions to the weights of models of this one's shape: y += scale * b (a x), in float32."""
    def __init__(self, model: Model) -> None: ...
    def set(self, name: str, a: npt.NDArray[Any], b: npt.NDArray[Any], scale: float) -> None:
        """ "q.{layer}", and so k, v, o, gate, up, down; each once, before a step has the adapter. a [rank, K] and
        b [N, rank], float32 or uint16 (bf16), copied; N in the order of the executor's rows; rank at most 64."""
    @property
    def nbytes(self) -> int: ...

class KvCache:
    """Paged KV memory: num_blocks blocks of BLOCK_TOKENS tokens over all layers; int8 with a step a token and head."""
    def __init__(self, model: Model, num_blocks: int, kv: Literal["bf16", "int8"] = "bf16") -> None: ...
    @property
    def kv(self) -> Literal["bf16", "int8"]: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...
    def copy_blocks(self, src: I32, dst: I32) -> None: ...
    @staticmethod
    def bytes_per_block(spec: ModelSpec, kv: Literal["bf16", "int8"] = "bf16", ranks: Sequence[int] = (1,)) -> int:
        """With as many threads in each rank as `ranks` says; ranks that share a KV head have it each."""
