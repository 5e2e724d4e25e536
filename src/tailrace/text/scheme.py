"""The contract between a tokenizer and the way its vocabulary cuts text into tokens.

There are three ways: `bytelevel` (words by a regular expression, then ranked merges), `pieces` (merges by score over
the whole text) and `folder` (whatever a tokenizer.json says). The work itself is the `tokenizers` library's, except for
pieces, which the native module joins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, Protocol

import numpy as np
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE, Model
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from tailrace.errors import ModelFileError
from tailrace.frozen import frozen
from tailrace.text.vocabulary import SPECIAL_KINDS, USER_DEFINED, Vocabulary
from tailrace.types import Tokens

Encode = Callable[[str], Tokens]

# No normal form C is shorter than a third of its text's UTF-8 (three Hangul letters make one syllable of their size).
NFC_SHRINKS = 3


@frozen
class Prepared:
    """A vocabulary ready for use.

    `plain` takes the text of control tokens as text, `parsing` cuts them out first; both give int32 [n] and raise
    UnicodeEncodeError or TypeError for text that is not Unicode. `data` are the bytes of every token. `shrinks`: a text
    of n bytes is n / shrinks bytes of tokens or more; 0 where nothing is known.
    """

    plain: Encode
    parsing: Encode
    data: list[bytes]
    first_space: str = ""  # put before a text that does not begin with it
    drops_space: bool = False  # encoding puts a space first that decoding takes away
    shrinks: int = 1


class Scheme(Protocol):
    def prepare(self, vocabulary: Vocabulary) -> Prepared:
        """Raises ModelFileError for a vocabulary that this scheme cannot use."""


def with_library(library: Library) -> Encode:
    def encode(text: str) -> Tokens:
        # The batch call is the one without offsets; they would double the time.
        return np.array(library.encode_batch_fast([text], add_special_tokens=False)[0].ids, dtype=np.int32)

    return encode


def merging(vocabulary: Vocabulary, **options: Any) -> BPE:
    """The model that merges by rank. Raises ModelFileError."""
    ids = dict(zip(vocabulary.tokens, range(len(vocabulary.tokens)), strict=True))
    merges: list[Any] = list(map(tuple, map(str.split, vocabulary.merges, repeat(" "), repeat(1))))
    try:
        return BPE(vocab=ids, merges=merges, **options)
    except Exception as error:  # the library raises bare Exception, with a text that names the merge
        raise ModelFileError(f"tokenizer.ggml.merges does not fit the vocabulary: {error}") from None


def libraries(
    vocabulary: Vocabulary, model: Model, normalizer: Normalizer | None, pre_tokenizer: PreTokenizer | None
) -> tuple[Encode, Encode]:
    """(plain, parsing) over one model: two of the library's objects, because it keeps the choice as a state.
    User-defined tokens are recognized by both."""
    user_defined = vocabulary.of_kind(USER_DEFINED)
    pair = []
    for added in (user_defined, user_defined + vocabulary.of_kind(*SPECIAL_KINDS)):
        library = Library(model)
        library.normalizer = normalizer
        library.pre_tokenizer = pre_tokenizer
        library.add_special_tokens(_added([vocabulary.tokens[i] for i in added]))
        pair.append(with_library(library))
    return pair[0], pair[1]


def _added(texts: Sequence[str]) -> list[AddedToken | str]:
    """Taken as they are, before any normalization. An empty text would be found everywhere."""
    return [AddedToken(text, normalized=False, special=True) for text in texts if text]
