"""Score-merged BPE with byte fallback, as SentencePiece does it (Kudo and Richardson 2018).

The whole text is one word: of all neighbours that make a piece of the vocabulary, those whose piece has the highest
score are joined first, from the left. Characters that no piece has become byte tokens. A space is written U+2581, and
one may be put in front of the text. No text takes longer than n log n.

The joining is native (csrc/pieces.cpp); the `tokenizers` library, which merges pairs by rank, does it for vocabularies
that list their merges. It could do both, but would need two seconds to take in a vocabulary of 262,144.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tokenizers import Regex, models, normalizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import Split

from tailrace.errors import ModelFileError
from tailrace.frozen import frozen
from tailrace.text.bytelevel import byte_of
from tailrace.text.scheme import Encode, Prepared, libraries, merging
from tailrace.text.vocabulary import BYTE, NORMAL, SPECIAL_KINDS, UNUSED, USER_DEFINED, Vocabulary
from tailrace.types import Tokens

SPACE = "\u2581"
_SPACE_BYTES = SPACE.encode()
_MERGED, _SYMBOL, _ALWAYS_CUT, _CUT_IF_PARSED = 1, 2, 4, 8  # PieceRole in csrc/pieces.h
_ROLES = {NORMAL: _MERGED | _SYMBOL, UNUSED: _MERGED | _SYMBOL, USER_DEFINED: _SYMBOL | _ALWAYS_CUT}


@frozen
class PieceScheme:
    """`merges_by_score`: whatever makes a piece is joined; otherwise the file lists the pairs. `line_words`: line ends
    and what is between them are words of their own."""

    merges_by_score: bool = True
    line_words: bool = False
    adds_space: bool = True
    adds_bos: bool = True

    def prepare(self, vocabulary: Vocabulary) -> Prepared:
        data = piece_data(vocabulary)
        plain, parsing = native_pieces(vocabulary, data) if self.merges_by_score else self._libraries(vocabulary)
        return Prepared(
            plain,
            parsing,
            data=data,
            drops_space=vocabulary.space_prefix,
            shrinks=1 if _has_bytes(vocabulary) else 0,  # any number of unknown characters are one token
        )

    def _libraries(self, vocabulary: Vocabulary) -> tuple[Encode, Encode]:
        words = Split(Regex(r"\n+"), behavior="isolated") if self.line_words else None
        return libraries(vocabulary, self._model(vocabulary), _normalizer(vocabulary.space_prefix), words)

    def _model(self, vocabulary: Vocabulary) -> models.BPE:
        unknown = _unknown(vocabulary)
        tokens = {} if unknown is None else {"unk_token": vocabulary.tokens[unknown]}
        return merging(vocabulary, byte_fallback=True, fuse_unk=True, **tokens)


def _normalizer(space_prefix: bool) -> Normalizer:
    escape = normalizers.Replace(" ", SPACE)
    return normalizers.Sequence([normalizers.Prepend(SPACE), escape]) if space_prefix else escape


def _has_bytes(vocabulary: Vocabulary) -> bool:
    return len({vocabulary.tokens[i] for i in vocabulary.of_kind(BYTE)}) == 256


def _unknown(vocabulary: Vocabulary) -> int | None:
    """What stands for characters that the vocabulary lacks, where byte tokens cannot."""
    if _has_bytes(vocabulary):
        return None
    if vocabulary.unknown_id is None:
        raise ModelFileError(
            "the vocabulary has neither 256 byte tokens (tokenizer.ggml.token_type 6) nor "
            "tokenizer.ggml.unknown_token_id, so some text could not be encoded"
        )
    return vocabulary.unknown_id


def native_pieces(vocabulary: Vocabulary, data: Sequence[bytes]) -> tuple[Encode, Encode]:
    """(plain, parsing). `data` are the bytes of every token."""
    from tailrace._native import Pieces  # noqa: PLC0415 - whoever only looks at vocabularies does without it

    unknown = _unknown(vocabulary)
    of_byte = np.empty(0 if unknown is not None else 256, np.int32)
    if unknown is None:
        for token in vocabulary.of_kind(BYTE):
            of_byte[data[token][0]] = token
    kinds = np.asarray(vocabulary.kinds)
    roles = np.zeros(len(kinds), np.uint8)
    for kind, role in (*_ROLES.items(), *dict.fromkeys(SPECIAL_KINDS, _CUT_IF_PARSED).items()):
        roles[kinds == kind] = role
    texts = [token.encode() for token in vocabulary.tokens]
    pieces = Pieces(
        b"".join(texts),
        np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts))),
        np.asarray(vocabulary.scores, np.float32),
        roles,
        of_byte,
        -1 if unknown is None else unknown,
        vocabulary.space_prefix,
    )

    def plain(text: str) -> Tokens:
        return pieces.encode(text.encode(), False)

    def parsing(text: str) -> Tokens:
        return pieces.encode(text.encode(), True)

    return plain, parsing


def piece_data(vocabulary: Vocabulary) -> list[bytes]:
    """The bytes of every token: a space for U+2581 except in the names of control tokens, one byte for a byte token."""
    data = [token.encode() for token in vocabulary.tokens]
    for index in vocabulary.of_kind(NORMAL, UNUSED, USER_DEFINED):
        data[index] = data[index].replace(_SPACE_BYTES, b" ")
    for index in vocabulary.of_kind(BYTE):
        data[index] = byte_of(vocabulary.tokens[index])
    return data
