"""Text to token ids and back: byte-level BPE read from a model file's metadata.

Owns the vocabulary, which ids are special, and which end an answer. The merging itself is the `tokenizers` library's,
which releases the GIL: 1 MB takes 0.3 to 3 s on one core whatever the text (one letter a million times is as good as
prose), so long texts are encoded off the event loop. Refuses vocabularies that are not byte-level BPE.

Characters whose UTF-8 bytes are not in the vocabulary (SmolLM2 lacks six control characters and planes that Unicode
has not assigned) vanish on encoding, as they did when the model was trained; `missing_bytes` lists those bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as _Library
from tokenizers.pre_tokenizers import ByteLevel

from tailrace.errors import InvalidRequest, ModelFileError
from tailrace.text.pretokenizers import PRE_TOKENIZERS, PreTokenizerSpec
from tailrace.types import Tokens

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6  # tokenizer.ggml.token_type
_SPECIAL_TYPES = (_UNKNOWN, _CONTROL)

# Control tokens that end a turn or a document by their name. Files often name only one of those they use as the end
# token, and a model that has ended its turn goes on with rubbish. Separators inside a document are not among them.
_ENDING_NAMES = frozenset(
    ("<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "</s>")
)
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


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


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a model file says about its tokens. `kinds` are the file's token types, one for each token."""

    tokens: Sequence[str]
    kinds: Sequence[int]
    merges: Sequence[str]  # "left right"
    bos_id: int | None = None
    eos_id: int | None = None
    end_ids: frozenset[int] = frozenset()  # those that the file names
    wants_bos: bool = False
    wants_eos: bool = False
    space_prefix: bool = False


class Tokenizer:
    """Byte-level BPE over one vocabulary. Immutable: any thread may use it at any time.

    Two copies of the library's object share one model: one cuts out control tokens first, one treats their text as
    text, because the library keeps that choice as a state.
    """

    def __init__(self, vocabulary: Vocabulary, spec: PreTokenizerSpec) -> None:
        self._tokens = vocabulary.tokens
        self._space_prefix = vocabulary.space_prefix
        self._eos_id = vocabulary.eos_id if vocabulary.wants_eos else None
        self.bos_id = vocabulary.bos_id
        self.wants_bos = vocabulary.wants_bos and vocabulary.bos_id is not None
        self.special_ids = frozenset(i for i, kind in enumerate(vocabulary.kinds) if kind in _SPECIAL_TYPES)
        self.end_ids = vocabulary.end_ids | {i for i in self.special_ids if self._tokens[i] in _ENDING_NAMES}
        self._bytes = _token_bytes(vocabulary)
        self.visible_bytes = self._bytes.copy()  # what each token adds to an answer
        for special in self.special_ids:
            self.visible_bytes[special] = b""
        self.whole_texts = [_whole_characters(data) for data in self.visible_bytes]  # None: not characters by itself
        self.missing_bytes = frozenset(range(256)) - {data[0] for data in self._bytes if len(data) == 1}
        self.max_token_bytes = max(map(len, self._bytes))
        model = _model(vocabulary, spec)
        user_defined = [i for i, kind in enumerate(vocabulary.kinds) if kind == _USER_DEFINED]
        self._plain = self._library(model, spec, user_defined)
        self._parsing = self._library(model, spec, user_defined + sorted(self.special_ids))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """Built from the `tokenizer.ggml.*` keys of a GGUF file (0.2 s for 49,152 tokens, most of it the library's).

        Raises ModelFileError for a kind of vocabulary or a pre-tokenizer that is not known, and for a missing or
        inconsistent key.
        """
        spec = _pre_tokenizer(metadata)
        return cls(_read_vocabulary(metadata, spec), spec)

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

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
        """The text of the ids; bytes that are not UTF-8 become U+FFFD. Raises InvalidRequest for an unknown id."""
        table = self.visible_bytes if skip_special else self._bytes
        try:
            return b"".join([table[self._known(i)] for i in ids]).decode("utf-8", "replace")
        except IndexError:
            raise self._unknown_id() from None

    def token_bytes(self, token_id: int, *, special: bool = False) -> bytes:
        """The bytes that a token adds to the answer: none for special tokens, or with `special` their name's."""
        return (self._bytes if special else self.visible_bytes)[token_id]

    def token_name(self, token_id: int) -> str:
        """The token as the model file spells it (byte-level alphabet, not readable text)."""
        return self._tokens[token_id]

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special_ids

    def fewest_tokens(self, n_bytes: int) -> int:
        """A lower bound on the tokens of a text of that many UTF-8 bytes, so that a text far beyond the context can
        be refused without reading it."""
        return -(-n_bytes // self.max_token_bytes)

    def _encode(self, text: str, parse_special: bool) -> Tokens:
        if self._space_prefix and text and not text.startswith(" "):
            text = " " + text
        library = self._parsing if parse_special else self._plain
        try:
            # The batch call is the one without offsets; they would double the time.
            encoding = library.encode_batch_fast([text], add_special_tokens=False)[0]
        except (UnicodeEncodeError, TypeError):
            clean_text(text, field="text")
            raise
        return np.array(encoding.ids, dtype=np.int32)

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

    def _library(self, model: models.BPE, spec: PreTokenizerSpec, added: Sequence[int]) -> _Library:
        library = _Library(model)
        library.pre_tokenizer = spec.build()
        library.add_special_tokens([AddedToken(self._tokens[i], normalized=False, special=True) for i in added])
        return library


def _model(vocabulary: Vocabulary, spec: PreTokenizerSpec) -> models.BPE:
    ids = dict(zip(vocabulary.tokens, range(len(vocabulary.tokens)), strict=True))
    merges = [(left, right) for left, _, right in [merge.partition(" ") for merge in vocabulary.merges]]
    try:
        return models.BPE(vocab=ids, merges=merges, ignore_merges=spec.ignore_merges)
    except Exception as error:  # the library raises bare Exception, with a text that names the merge
        raise ModelFileError(f"tokenizer.ggml.merges does not fit the vocabulary: {error}") from None


def _token_bytes(vocabulary: Vocabulary) -> list[bytes]:
    """The bytes of every token. The byte-level alphabet writes each byte as one printable character, so one translation
    of the whole vocabulary, with a separator outside of it, does for all normal tokens (30 ms for 49,152)."""
    table = {ord(char): chr(value) for value, char in enumerate(_byte_alphabet())} | {ord("\n"): "\u0100"}
    normal = [
        token if kind == _NORMAL and "\n" not in token else ""
        for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True)
    ]
    pieces = "\n".join(normal).translate(table).split("\u0100")
    return [
        _latin(piece) if piece else _literal(vocabulary.tokens[i], vocabulary.kinds[i])
        for i, piece in enumerate(pieces)
    ]


def _latin(piece: str) -> bytes:
    try:
        return piece.encode("latin-1")
    except UnicodeEncodeError:  # not of the alphabet: what a normal token of such a file means is its own text
        return piece.encode()


def _literal(token: str, kind: int) -> bytes:
    """Control and user-defined tokens are written as plain text, byte tokens as <0xNN>."""
    return bytes.fromhex(token[3:-1]) if kind == _BYTE else token.encode()


def _whole_characters(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _byte_alphabet() -> list[str]:
    """The 256 characters that stand for bytes 0 to 255: printable Latin-1 for itself, the others from U+0100 on."""
    printable = set(ByteLevel.alphabet())
    others = iter(range(0x100, 0x200))
    return [chr(byte) if chr(byte) in printable else chr(next(others)) for byte in range(256)]


def _pre_tokenizer(metadata: Mapping[str, object]) -> PreTokenizerSpec:
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelFileError(f'tokenizer.ggml.model is {kind!r}; known: "gpt2" (byte-level BPE)')
    name = metadata.get("tokenizer.ggml.pre")
    spec = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if spec is None:
        raise ModelFileError(f"tokenizer.ggml.pre is {name!r}; known: {', '.join(sorted(PRE_TOKENIZERS))}")
    return spec


def _read_vocabulary(metadata: Mapping[str, object], spec: PreTokenizerSpec) -> Vocabulary:
    tokens = _strings(metadata, "tokens")
    if not tokens:
        raise ModelFileError("tokenizer.ggml.tokens is empty")
    kinds = _kinds(metadata, len(tokens))
    eos_id, *others = (_token_id(metadata, key, len(tokens)) for key in _END_KEYS)
    return Vocabulary(
        tokens=tokens,
        kinds=kinds,
        merges=_strings(metadata, "merges"),
        bos_id=_token_id(metadata, "bos_token_id", len(tokens)),
        eos_id=eos_id,
        end_ids=frozenset(i for i in (eos_id, *others) if i is not None),
        wants_bos=_flag(metadata, "add_bos_token", spec.adds_bos),
        wants_eos=_flag(metadata, "add_eos_token", False),
        space_prefix=_flag(metadata, "add_space_prefix", False),
    )


def _strings(metadata: Mapping[str, object], key: str) -> list[str]:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(value, Sequence | np.ndarray) or set(map(type, value)) - {str}:
        raise ModelFileError(f"tokenizer.ggml.{key} must be a list of strings, not {type(value).__name__}")
    return list(value)


def _kinds(metadata: Mapping[str, object], n_tokens: int) -> list[int]:
    value = metadata.get("tokenizer.ggml.token_type")
    if value is None:
        return [1] * n_tokens
    if not isinstance(value, Sequence | np.ndarray) or len(value) != n_tokens:
        raise ModelFileError(f"tokenizer.ggml.token_type must have one entry for each of the {n_tokens} tokens")
    return [int(kind) for kind in np.asarray(value).tolist()]


def _token_id(metadata: Mapping[str, object], key: str, n_tokens: int) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        return None
    if not isinstance(value, int | np.integer) or not 0 <= value < n_tokens:
        raise ModelFileError(f"tokenizer.ggml.{key} is {value!r}; the vocabulary has {n_tokens} tokens")
    return int(value)


def _flag(metadata: Mapping[str, object], key: str, default: bool) -> bool:
    return bool(metadata.get(f"tokenizer.ggml.{key}", default))
