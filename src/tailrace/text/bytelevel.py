"""Byte-level BPE: text is cut into words by regular expressions, and each word's bytes are merged by rank.

Each byte is written as one printable character (GPT-2's alphabet), so a vocabulary is made of plain strings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import models
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer

from tailrace.errors import ModelFileError
from tailrace.text.scheme import NFC_SHRINKS, Prepared, libraries
from tailrace.text.vocabulary import BYTE, NORMAL, Vocabulary


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
        plain, parsing = libraries(vocabulary, self._model(vocabulary), normalizer, self.build())
        return Prepared(
            plain,
            parsing,
            data=byte_level_data(vocabulary),
            first_space=" " if vocabulary.space_prefix else "",
            shrinks=NFC_SHRINKS if self.composes else 1,
        )

    def _model(self, vocabulary: Vocabulary) -> models.BPE:
        ids = dict(zip(vocabulary.tokens, range(len(vocabulary.tokens)), strict=True))
        merges = [(left, right) for left, _, right in [merge.partition(" ") for merge in vocabulary.merges]]
        try:
            return models.BPE(vocab=ids, merges=merges, ignore_merges=self.ignore_merges)
        except Exception as error:  # the library raises bare Exception, with a text that names the merge
            raise ModelFileError(f"tokenizer.ggml.merges does not fit the vocabulary: {error}") from None


def byte_level_data(vocabulary: Vocabulary) -> list[bytes]:
    """The bytes of every token. The byte-level alphabet writes each byte as one printable character, so one translation
    of the whole vocabulary, with a separator outside of it, does for all normal tokens (30 ms for 49,152)."""
    table = {ord(char): chr(value) for value, char in enumerate(_byte_alphabet())} | {ord("\n"): "\u0100"}
    normal = [
        token if kind == NORMAL and "\n" not in token else ""
        for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True)
    ]
    pieces = "\n".join(normal).translate(table).split("\u0100")
    return [
        _latin(piece, vocabulary.tokens[i]) if piece else _literal(vocabulary.tokens[i], vocabulary.kinds[i])
        for i, piece in enumerate(pieces)
    ]


def _latin(piece: str, token: str) -> bytes:
    try:
        return piece.encode("latin-1")
    except UnicodeEncodeError:  # not of the alphabet: what a normal token of such a file means is its own text
        return token.encode()


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
