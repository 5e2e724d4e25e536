"""The tokenizer of a model folder: tokenizer.json, and the small files beside it that say which tokens begin and end
a text.

The `tokenizers` library reads tokenizer.json itself. Owned here: what the library does not say (the bytes of each
token, which tokens end an answer). WordPiece folds case and accents
away, so its bytes are only near the text's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from tailrace.errors import ModelFileError
from tailrace.frozen import frozen
from tailrace.text.bytelevel import byte_level_data
from tailrace.text.pieces import SPACE, piece_data
from tailrace.text.scheme import NFC_SHRINKS, Prepared, with_library
from tailrace.text.vocabulary import BYTE, CONTROL, NORMAL, SPECIAL_KINDS, UNUSED, USER_DEFINED, Vocabulary

MAX_JSON = 64 * 1024 * 1024  # bytes of a file beside tokenizer.json
MAX_VOCABULARY = 4_000_000
_PIECE_DECODERS = {"ByteFallback", "Metaspace"}
_KEEPING = {"Sequence", "Split", "ByteLevel", "Digits", "Punctuation", "Metaspace"}  # pre-tokenizers that lose no text

Json = dict[str, Any]


@frozen
class FolderScheme:
    """What tokenizer.json says. `library` parses control tokens."""

    library: Library

    def prepare(self, vocabulary: Vocabulary) -> Prepared:
        decoder = _state(self.library.decoder)
        return Prepared(
            plain=with_library(_taking_control_tokens_as_text(self.library)),
            parsing=with_library(self.library),
            data=_data(vocabulary, decoder),
            drops_space=_drops_space(decoder),
            shrinks=_shrinks(self.library),
        )


def read_folder(folder: Path) -> tuple[Vocabulary, FolderScheme]:
    """Raises ModelFileError."""
    library = _read_library(folder / "tokenizer.json")
    settings = read_json(folder / "tokenizer_config.json")
    model, generation = read_json(folder / "config.json"), read_json(folder / "generation_config.json")
    _add_missing(library, settings)
    added = library.get_added_tokens_decoder()
    text_model = model.get("text_config")
    sizes = [model.get("vocab_size"), text_model.get("vocab_size") if isinstance(text_model, Mapping) else None]
    tokens = _tokens(library, max((size for size in sizes if isinstance(size, int)), default=0))
    bos_id, eos_id = (_named(library, settings, key) for key in ("bos_token", "eos_token"))
    before, after = _around(library)
    ends = {eos_id, *_ids(generation, "eos_token_id"), *_ids(model, "eos_token_id")} - {None}
    vocabulary = Vocabulary(
        tokens=tokens,
        kinds=_kinds(tokens, added, _is_byte_level(library)),
        bos_id=before[0] if before else _first(bos_id, *_ids(generation, "bos_token_id"), *_ids(model, "bos_token_id")),
        eos_id=after[0] if after else eos_id,
        end_ids=frozenset(i for i in ends if i is not None and 0 <= i < len(tokens)),
        wants_bos=bool(settings.get("add_bos_token", bool(before))),
        wants_eos=bool(settings.get("add_eos_token", bool(after))),
    )
    return vocabulary, FolderScheme(library)


def read_json(path: Path) -> Json:
    """A JSON object; empty when the file is absent."""
    if not path.is_file():
        return {}
    if path.stat().st_size > MAX_JSON:
        raise ModelFileError(f"{path} is larger than {MAX_JSON} bytes")
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} holds no JSON object")
    return value


def token_text(value: object) -> str | None:
    """How tokenizer_config.json writes a token: its text, or an object that has it as `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _read_library(path: Path) -> Library:
    if not path.is_file():
        raise ModelFileError(f"{path} is missing; a model folder needs it (tokenizer.model alone is not read)")
    try:
        library = Library.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ModelFileError(f"{path} cannot be used: {error}") from None
    library.no_truncation()
    library.no_padding()
    decoder = _state(library.decoder)
    if not (
        _types(decoder) & {"ByteLevel", "WordPiece", *_PIECE_DECODERS}
        or SPACE in json.dumps(decoder, ensure_ascii=False)
    ):
        known = "ByteLevel, ByteFallback, Metaspace, WordPiece, Replace of U+2581"
        raise ModelFileError(f"{path}: the decoder is {sorted(_types(decoder)) or None}; known: {known}")
    return library


def _add_missing(library: Library, settings: Json) -> None:
    """Tokens that only tokenizer_config.json names, as `transformers` adds them."""
    listed = settings.get("added_tokens_decoder", {})
    if not isinstance(listed, Mapping) or not all(key.isdecimal() for key in listed):
        raise ModelFileError("tokenizer_config.json: added_tokens_decoder must be an object with token ids as keys")
    for index, entry in sorted(((int(key), entry) for key, entry in listed.items()), key=lambda item: item[0]):
        text = token_text(entry)
        if not isinstance(entry, Mapping) or not text or library.token_to_id(text) is not None:
            continue
        flags = {flag: bool(entry.get(flag, False)) for flag in ("lstrip", "rstrip", "normalized", "single_word")}
        _add(library, AddedToken(text, special=bool(entry.get("special", False)), **flags))
        if library.token_to_id(text) != index:
            raise ModelFileError(f"tokenizer_config.json gives {text!r} the id {index}, which tokenizer.json has taken")


def _add(library: Library, token: AddedToken) -> None:
    (library.add_special_tokens if token.special else library.add_tokens)([token])


def _taking_control_tokens_as_text(library: Library) -> Library:
    plain = Library(library.model)
    plain.normalizer, plain.pre_tokenizer = library.normalizer, library.pre_tokenizer
    for _, token in sorted(library.get_added_tokens_decoder().items()):
        _add(plain, token)
    plain.encode_special_tokens = True
    return plain


def _tokens(library: Library, at_least: int) -> list[str]:
    """By id; a model may have more rows than there are tokens, whose text is empty."""
    ids = library.get_vocab(with_added_tokens=True)
    size = max(at_least, 1 + max(ids.values(), default=-1))
    if not ids or size > MAX_VOCABULARY:
        raise ModelFileError(f"tokenizer.json and config.json mean {size} tokens; 1 to {MAX_VOCABULARY} can be used")
    tokens = [""] * size
    for token, index in ids.items():
        tokens[index] = token
    return tokens


def _kinds(tokens: list[str], added: Mapping[int, AddedToken], byte_level: bool) -> list[int]:
    kinds = [_kind(token, byte_level) for token in tokens]
    for index, token in added.items():
        kinds[index] = CONTROL if token.special else USER_DEFINED
    return kinds


def _kind(token: str, byte_level: bool) -> int:
    if not token:
        return UNUSED
    return BYTE if not byte_level and len(token) == 6 and token.startswith("<0x") else NORMAL


def _named(library: Library, settings: Json, key: str) -> int | None:
    text = token_text(settings.get(key))
    return None if text is None else library.token_to_id(text)


def _ids(settings: Json, key: str) -> list[int]:
    value = settings.get(key)
    return [i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int)]


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _around(library: Library) -> tuple[list[int], list[int]]:
    """The ids that the file's post-processor puts before and after a text: at most one each."""
    inner = library.encode("a", add_special_tokens=False).ids
    outer = library.encode("a", add_special_tokens=True).ids
    for start in range(len(outer) - len(inner) + 1):
        if outer[start : start + len(inner)] == inner:
            before, after = outer[:start], outer[start + len(inner) :]
            if len(before) <= 1 and len(after) <= 1:
                return before, after
    raise ModelFileError("tokenizer.json: the post_processor puts more than one token before or after a text")


def _data(vocabulary: Vocabulary, decoder: Any) -> list[bytes]:
    """What each token adds to a text."""
    if "ByteLevel" in _types(decoder):
        return byte_level_data(vocabulary)
    if "WordPiece" in _types(decoder):
        special = set(vocabulary.of_kind(*SPECIAL_KINDS))
        return [_word_piece(token, i in special) for i, token in enumerate(vocabulary.tokens)]
    return piece_data(vocabulary)


def _word_piece(token: str, special: bool) -> bytes:
    """Words stand apart; what goes on a word begins with ##. (Blanks before punctuation cannot be known.)"""
    if special or not token:
        return token.encode()
    return (token[2:] if token.startswith("##") and len(token) > 2 else f" {token}").encode()


def _is_byte_level(library: Library) -> bool:
    return "ByteLevel" in _types(_state(library.decoder))


def _state(part: Any) -> Any:
    """A part of the library's tokenizer as tokenizer.json writes it."""
    return None if part is None else json.loads(part.__getstate__())


def _objects(state: Any) -> Iterator[Json]:
    if isinstance(state, dict):
        yield state
    for inner in state.values() if isinstance(state, dict) else state if isinstance(state, list) else ():
        yield from _objects(inner)


def _types(state: Any) -> set[str]:
    return {part["type"] for part in _objects(state) if "type" in part}


def _drops_space(decoder: Any) -> bool:
    return any(
        (part.get("type") == "Strip" and part.get("content") == " " and part.get("start", 0) > 0)
        or part.get("type") == "WordPiece"
        or (part.get("type") == "Metaspace" and part.get("prepend_scheme") != "never")
        for part in _objects(decoder)
    )


def _shrinks(library: Library) -> int:
    """See `Prepared`: 0 where a normalizer, a splitter or a token may take away any amount of text."""
    normalizer, splitter = _state(library.normalizer), _state(library.pre_tokenizer)
    taking = any(token.lstrip or token.rstrip for token in library.get_added_tokens_decoder().values())
    if taking or _types(splitter) - _KEEPING or any(part.get("behavior") == "Removed" for part in _objects(splitter)):
        return 0
    replacing = [part for part in _objects(normalizer) if part.get("type") == "Replace"]
    if any((part.get("pattern"), part.get("content")) != ({"String": " "}, SPACE) for part in replacing):
        return 0
    kinds = _types(normalizer) - {"Sequence", "Prepend", "Replace"}
    return 1 if not kinds else NFC_SHRINKS if kinds == {"NFC"} else 0
