"""Score-merged BPE with byte fallback, as SentencePiece does it (Kudo and Richardson 2018).

The whole text is one word: of all neighbours that make a piece of the vocabulary, those whose piece has the highest
score are joined first, from the left. Characters that no piece has become byte tokens. A space is written U+2581, and
one may be put in front of the text.

The `tokenizers` library merges pairs by rank, so each piece is turned into all the pairs that make it, in the order of
the scores. Where pieces share a score (runs of spaces), pairs with longer parts come first, which gives what joining
from the left gives. The library works with a queue: no text takes longer than n log n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, models, normalizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer, Split

from tailrace.errors import ModelFileError
from tailrace.text.bytelevel import byte_of
from tailrace.text.scheme import Prepared, libraries
from tailrace.text.vocabulary import BYTE, NORMAL, UNUSED, USER_DEFINED, Vocabulary

SPACE = "\u2581"
_SPACE_BYTES = SPACE.encode()
_BITS = 22
_HASH_FACTOR = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2**64


@dataclass(frozen=True, slots=True)
class PieceScheme:
    """`merges_by_score`: pairs are derived from scores; otherwise the file lists them. `line_words`: line ends and what
    is between them are words of their own."""

    merges_by_score: bool = True
    line_words: bool = False
    adds_space: bool = True
    adds_bos: bool = True

    def prepare(self, vocabulary: Vocabulary) -> Prepared:
        normalizer, pre_tokenizer = _normalizer(vocabulary.space_prefix), self._words()
        plain, parsing = libraries(vocabulary, self._model(vocabulary), normalizer, pre_tokenizer)
        return Prepared(
            plain,
            parsing,
            data=piece_data(vocabulary),
            drops_space=vocabulary.space_prefix,
            shrinks=0 if _unknown(vocabulary) else 1,  # any number of unknown characters are one token
        )

    def _words(self) -> PreTokenizer | None:
        return Split(Regex(r"\n+"), behavior="isolated") if self.line_words else None

    def _model(self, vocabulary: Vocabulary) -> models.BPE:
        if self.merges_by_score:
            merges = pairs_by_score(vocabulary)
        else:
            merges = [(left, right) for left, _, right in [merge.partition(" ") for merge in vocabulary.merges]]
        ids = dict(zip(vocabulary.tokens, range(len(vocabulary.tokens)), strict=True))
        try:
            return models.BPE(vocab=ids, merges=merges, byte_fallback=True, fuse_unk=True, **_unknown(vocabulary))
        except Exception as error:  # the library raises bare Exception, with a text that names the merge
            raise ModelFileError(f"tokenizer.ggml.merges does not fit the vocabulary: {error}") from None


def _normalizer(space_prefix: bool) -> Normalizer:
    escape = normalizers.Replace(" ", SPACE)
    return normalizers.Sequence([normalizers.Prepend(SPACE), escape]) if space_prefix else escape


def _unknown(vocabulary: Vocabulary) -> dict[str, str]:
    """What stands for characters that the vocabulary lacks, where byte tokens cannot."""
    if len({vocabulary.tokens[i] for i in vocabulary.of_kind(BYTE)}) == 256:
        return {}
    if vocabulary.unknown_id is None:
        raise ModelFileError(
            "the vocabulary has neither 256 byte tokens (tokenizer.ggml.token_type 6) nor "
            "tokenizer.ggml.unknown_token_id, so some text could not be encoded"
        )
    return {"unk_token": vocabulary.tokens[vocabulary.unknown_id]}


def piece_data(vocabulary: Vocabulary) -> list[bytes]:
    """The bytes of every token: a space for U+2581 except in the names of control tokens, one byte for a byte token."""
    data = [token.encode() for token in vocabulary.tokens]
    for index in vocabulary.of_kind(NORMAL, UNUSED, USER_DEFINED):
        data[index] = data[index].replace(_SPACE_BYTES, b" ")
    for index in vocabulary.of_kind(BYTE):
        data[index] = byte_of(vocabulary.tokens[index])
    return data


def pairs_by_score(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """All pairs of pieces that make a piece, the one to be joined first in front. Control tokens, byte tokens and
    user-defined ones are no pieces: the first two are never made from text, the third are cut out before."""
    ids = np.array(vocabulary.of_kind(NORMAL, UNUSED), dtype=np.int64)
    _, rank = np.unique(-np.asarray(vocabulary.scores, dtype=np.float64)[ids], return_inverse=True)
    pieces = [vocabulary.tokens[i] for i in ids.tolist()]
    lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
    whole, left, right = _cuts(pieces, lengths)
    order = np.lexsort((-lengths[right], -lengths[left], rank[whole]))
    texts = np.array(pieces, dtype=object)
    return list(zip(texts[left[order]].tolist(), texts[right[order]].tolist(), strict=True))


_Indices = npt.NDArray[np.int64]
_Hashes = npt.NDArray[np.uint64]


def _cuts(pieces: Sequence[str], lengths: _Indices) -> tuple[_Indices, _Indices, _Indices]:
    """(piece, its left part, its right part) for all cuts of a piece into two, as indices of pieces.

    Parts are found by 64-bit hashes: cutting and looking up the strings takes two seconds for 262,144 pieces. Two
    parts that share a hash by chance would make a pair that the library refuses, never a wrong token.
    """
    ends = np.cumsum(lengths)
    starts = ends - lengths
    hash_of = _SpanHashes("".join(pieces))
    hashes = hash_of(starts, ends)
    owner = np.repeat(np.arange(len(pieces), dtype=np.int64), lengths)
    at = np.flatnonzero(np.arange(len(owner)) > starts[owner])
    owner = owner[at]
    sides = [hash_of(starts[owner], at), hash_of(at, ends[owner])]
    possible = np.logical_and(*_may_be_among(hashes, sides))
    owner, sides = owner[possible], [side[possible] for side in sides]
    by_hash = np.argsort(hashes)
    hashes = hashes[by_hash]
    found = [np.searchsorted(hashes, side).clip(max=len(hashes) - 1) for side in sides]
    cut = np.logical_and(*(hashes[place] == side for place, side in zip(found, sides, strict=True)))
    return owner[cut], by_hash[found[0][cut]], by_hash[found[1][cut]]


def _may_be_among(hashes: _Hashes, wanted: Sequence[_Hashes]) -> list[npt.NDArray[np.bool_]]:
    """False for most that are not among `hashes`, at a tenth of the price of looking them up."""
    present = np.zeros(1 << _BITS, dtype=bool)
    present[_bucket(hashes)] = True
    return [present[_bucket(each)] for each in wanted]


def _bucket(hashes: _Hashes) -> _Hashes:
    mixed: _Hashes = ((hashes ^ (hashes >> np.uint64(32))) * np.uint64(_HASH_FACTOR)) >> np.uint64(64 - _BITS)
    return mixed


class _SpanHashes:
    """Hashes of any parts of one text: polynomial, modulo 2**64, from running sums."""

    def __init__(self, text: str) -> None:
        codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        self._sums = np.zeros(len(codes) + 1, dtype=np.uint64)
        np.cumsum(codes * _powers(_HASH_FACTOR, len(codes)), out=self._sums[1:])
        self._unshift = _powers(pow(_HASH_FACTOR, -1, 1 << 64), len(codes) + 1)

    def __call__(self, starts: _Indices, ends: _Indices) -> _Hashes:
        hashes: _Hashes = (self._sums[ends] - self._sums[starts]) * self._unshift[starts]
        return hashes


def _powers(factor: int, count: int) -> _Hashes:
    powers = np.full(count, factor, dtype=np.uint64)
    powers[:1] = 1
    return np.multiply.accumulate(powers)
