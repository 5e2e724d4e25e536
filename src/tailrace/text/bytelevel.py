"""Byte-level BPE: text is cut into words by regular expressions, and each word's bytes are merged by rank.

Each byte is written as one printable character (GPT-2's alphabet), so a vocabulary is made of plain strings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer

from tailrace.errors import ModelFileError
from tailrace.text.scheme import NFC_SHRINKS, Prepared, libraries, merging
from tailrace.text.vocabulary import BYTE, NORMAL, Vocabulary

_NO_BYTE = -1


@dataclass(frozen=True, slots=True)
class ByteLevelScheme:
    """`build` makes the splitter. `adds_bos` holds where the file does not say whether prompts begin with a start
    token. `ignore_merges`: a word that is itself a token is taken whole. `composes`: text is brought to normal form C
    first."""

    build: Callable[[], PreTokenizer]
    adds_bos: bool = False
    ignore_merges: bool = False
    composes: bool = False

    adds_space = False
    merges_by_score = False

    def prepare(self, vocabulary: Vocabulary) -> Prepared:
        normalizer = NFC() if self.composes else None
        model = merging(vocabulary, ignore_merges=self.ignore_merges)
        plain, parsing = libraries(vocabulary, model, normalizer, self.build())
        return Prepared(
            plain,
            parsing,
            data=byte_level_data(vocabulary),
            first_space=" " if vocabulary.space_prefix else "",
            shrinks=NFC_SHRINKS if self.composes else 1,
        )


def byte_level_data(vocabulary: Vocabulary) -> list[bytes]:
    """The bytes of every token. The byte-level alphabet writes each byte as one character, so one look into a table for
    the text of all normal tokens does; then each has as many bytes as characters."""
    tokens, normal = vocabulary.tokens, np.asarray(vocabulary.kinds) == NORMAL
    texts = [token if known else "" for token, known in zip(tokens, normal.tolist(), strict=True)]
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    values = _byte_values("".join(texts))
    joined = values.astype(np.uint8).tobytes()
    data = [joined[start:end] for start, end in pairwise([0, *ends.tolist()])]
    for i in np.flatnonzero(~normal).tolist():
        data[i] = _literal(tokens[i], vocabulary.kinds[i])
    for i in set(np.searchsorted(ends, np.flatnonzero(values == _NO_BYTE), side="right").tolist()):
        data[i] = tokens[i].encode()  # not of the alphabet: what a normal token of such a file means is its own text
    return data


def _byte_values(text: str) -> npt.NDArray[np.int16]:
    """The byte that each character stands for, or _NO_BYTE. Those of Latin-1 that no file writes stand for themselves,
    but a line's end makes a token plain text."""
    alphabet = _byte_alphabet()
    table = np.full(ord(max(alphabet)) + 2, _NO_BYTE, np.int16)
    table[:256] = range(256)
    table[ord("\n")] = _NO_BYTE
    table[[ord(char) for char in alphabet]] = range(256)
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return table[np.minimum(codes, len(table) - 1)]


def _literal(token: str, kind: int) -> bytes:
    """Control and user-defined tokens are written as plain text, byte tokens as <0xNN>."""
    return byte_of(token) if kind == BYTE else token.encode()


def byte_of(token: str) -> bytes:
    """Of a byte token, <0x00> to <0xFF>."""
    try:
        return bytes([int(token.removeprefix("<0x").removesuffix(">"), 16)])
    except ValueError:
        raise ModelFileError(f"the token {token!r} is marked as a byte but is not written <0xNN>") from None


def _byte_alphabet() -> list[str]:
    """The 256 characters that stand for bytes 0 to 255: printable Latin-1 for itself, the others from U+0100 on."""
    printable = set(ByteLevel.alphabet())
    others = iter(range(0x100, 0x200))
    return [chr(byte) if chr(byte) in printable else chr(next(others)) for byte in range(256)]
