"""Text to token ids and back, from a model file's metadata or a folder's tokenizer.json.

Owns the vocabulary, which ids are special, and which end an answer; how text is cut is the `scheme`'s. The merging
is native or the `tokenizers` library's, without the GIL: 1 MB takes 0.3 to 3 s on one core whatever the text (one
letter a million times is as good as prose), so long texts are encoded off the event loop.

Characters whose UTF-8 bytes are not in the vocabulary (SmolLM2 lacks six control characters and planes that Unicode
has not assigned) vanish on encoding, as they did when the model was trained; `missing_bytes` lists those bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from tailrace.errors import InvalidRequest
from tailrace.text.folder import read_folder
from tailrace.text.pretokenizers import scheme_of
from tailrace.text.scheme import Scheme
from tailrace.text.vocabulary import SPECIAL_KINDS, Vocabulary, read_vocabulary
from tailrace.types import Tokens

__all__ = ["Tokenizer", "Vocabulary", "clean_text"]

# Control tokens that end a turn or a document by their name. Files often name only one of those they use as the end
# token, and a model that has ended its turn goes on with rubbish. Separators inside a document are not among them.
_ENDING_NAMES = frozenset(
    ("<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "</s>")
)


def clean_text(text: str, *, field: str) -> str:
    """The text itself, if UTF-8 can write it.

    Raises InvalidRequest naming `field` for half a surrogate pair: such a string has no bytes, so guessing what was
    meant would count and answer something else than the client sent.
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"{field} holds half a surrogate pair (U+{ord(text[error.start]):04X} at character {error.start}), "
                "which is not valid Unicode text",
                param=field,
            ) from None
    return text


class Tokenizer:
    """One vocabulary with the scheme that cuts text into its tokens. Immutable: any thread may use it at any time."""

    def __init__(self, vocabulary: Vocabulary, scheme: Scheme) -> None:
        self._tokens = vocabulary.tokens
        self._eos_id = vocabulary.eos_id if vocabulary.wants_eos else None
        self.bos_id = vocabulary.bos_id
        self.wants_bos = vocabulary.wants_bos and vocabulary.bos_id is not None
        self.special_ids = frozenset(vocabulary.of_kind(*SPECIAL_KINDS))
        self.end_ids = vocabulary.end_ids | {i for i in self.special_ids if self._tokens[i] in _ENDING_NAMES}
        self._prepared = scheme.prepare(vocabulary)
        self._bytes = self._prepared.data
        self.visible_bytes = self._bytes.copy()  # what each token adds to an answer
        for special in self.special_ids:
            self.visible_bytes[special] = b""
        self.whole_texts = [_whole_characters(data) for data in self.visible_bytes]  # None: not characters by itself
        self.missing_bytes = frozenset(range(256)) - {data[0] for data in self._bytes if len(data) == 1}
        self.max_token_bytes = max(map(len, self._bytes))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """Built from the `tokenizer.ggml.*` keys of a GGUF file (0.2 s for 49,152 tokens with merges, 0.4 s for
        262,144 pieces).

        Raises ModelFileError for a kind of vocabulary or a pre-tokenizer that is not known, and for a missing or
        inconsistent key.
        """
        scheme = scheme_of(metadata)
        return cls(read_vocabulary(metadata, scheme), scheme)

    @classmethod
    def from_hf(cls, folder: Path | str) -> Tokenizer:
        """Built from a model folder's tokenizer.json; the `.json` files beside it say which tokens begin and end a
        text. Raises ModelFileError for files that are missing, broken, or mean what is not known."""
        return cls(*read_folder(Path(folder)))

    @property
    def end_of_text(self) -> int | None:
        """The token that the model puts behind a whole text, if it does."""
        return self._eos_id

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    def same_tokens(self, other: Tokenizer) -> bool:
        """Whether each id means the same in both."""
        return self._bytes == other._bytes

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> Tokens:
        """Token ids, int32 [n].

        `parse_special`: the text of a control token means that token, otherwise it is text like any other. User-defined
        tokens are always recognized. `add_special`: start and end tokens as the model file says, never a second one.
        Raises InvalidRequest for half a surrogate pair.
        """
        ids = self._encode(text, parse_special)
        if not add_special:
            return ids
        ids = self._with_bos(ids)
        if self._eos_id is not None and (not len(ids) or ids[-1] != self._eos_id):
            ids = np.append(ids, np.int32(self._eos_id))
        return ids

    def encode_rendered(self, text: str) -> Tokens:
        """The prompt's ids, int32 [n]: the one path for text that a chat template rendered and for prompts of plain
        completions, so that the same text gives the same ids whoever rendered it.

        Special tokens in the text are parsed. The start token comes first if the model wants one, whether or not the
        text already has it: never two, never none. No end token is added, since an answer is to follow.
        """
        return self._with_bos(self._encode(text, True))

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """The text of the ids; bytes that are not UTF-8 become U+FFFD. A space that encoding puts in front of every
        text is taken away. Raises InvalidRequest for an unknown id."""
        table = self.visible_bytes if skip_special else self._bytes
        ids = list(ids)
        try:
            parts = [table[self._known(i)] for i in ids]
        except IndexError:
            raise self._unknown_id() from None
        if self._prepared.drops_space:
            first = next((at for at, i in enumerate(ids) if i not in self.special_ids), 0)
            parts[first : first + 1] = [part.removeprefix(b" ") for part in parts[first : first + 1]]
        return b"".join(parts).decode("utf-8", "replace")

    def token_bytes(self, token_id: int, *, special: bool = False) -> bytes:
        """The bytes that a token adds to the answer: none for special tokens, or with `special` their name's."""
        return (self._bytes if special else self.visible_bytes)[token_id]

    def token_name(self, token_id: int) -> str:
        """The token as the model file spells it (byte-level alphabet, not readable text)."""
        return self._tokens[token_id]

    def special_tokens(self, names: Iterable[str]) -> dict[str, int]:
        """Ids of those names that control tokens have."""
        wanted = set(names)
        return {self._tokens[i]: i for i in self.special_ids if self._tokens[i] in wanted}

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special_ids

    def fewest_tokens(self, n_bytes: int) -> int:
        """A lower bound on the tokens of a text of that many UTF-8 bytes, so that a text far beyond the context can
        be refused without reading it; 0 where nothing is known."""
        shrinks = self._prepared.shrinks
        return -(-n_bytes // (shrinks * self.max_token_bytes)) if shrinks else 0

    def _encode(self, text: str, parse_special: bool) -> Tokens:
        if text and not text.startswith(self._prepared.first_space):
            text = self._prepared.first_space + text
        encode = self._prepared.parsing if parse_special else self._prepared.plain
        try:
            return encode(text)
        except (UnicodeEncodeError, TypeError):
            clean_text(text, field="text")
            raise

    def _with_bos(self, ids: Tokens) -> Tokens:
        if not self.wants_bos or (len(ids) and ids[0] == self.bos_id):
            return ids
        return np.concatenate([np.array([self.bos_id], dtype=np.int32), ids])

    def _known(self, token_id: int) -> int:
        if token_id < 0:
            raise self._unknown_id()
        return token_id

    def _unknown_id(self) -> InvalidRequest:
        return InvalidRequest(f"token ids go from 0 to {self.vocab_size - 1}", param="tokens")


def _whole_characters(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
