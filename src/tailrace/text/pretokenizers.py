"""How model files name their tokenizers: the way of merging, and for byte-level BPE the words that text is cut into.

A new one is one entry of a table. The expressions are those that the models publish in their tokenizer.json; several
names mean the same one. An unknown name is refused, since a guess would answer badly without saying so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tokenizers import Regex
from tokenizers import pre_tokenizers as pre
from tokenizers.pre_tokenizers import PreTokenizer

from tailrace.errors import ModelFileError
from tailrace.text.bytelevel import ByteLevelScheme
from tailrace.text.pieces import PieceScheme

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BREAKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT4_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|" + _BREAKS
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_GPT4 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_GPT4_REST}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_GPT4_REST}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
    rf" ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BREAKS}"
)
_SEED_CODER = rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BREAKS}"
_BAILING = rf"'(?i:[sdmt]|ll|ve|re)|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"

# Words that begin with any number of capitals: (prefix, capitals, small letters), either of the two may be missing.
_CAPITALS, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = r"[^\r\n\p{L}\p{N}]?" + _CAPITALS
_CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _BREAKS
_TEKKEN = rf"{_CASED}*{_SMALL}+|{_CASED}+{_SMALL}*|\p{{N}}|{_CASED_REST}"
_GPT4O = rf"{_CASED}*{_SMALL}+{_CONTRACTION}?|{_CASED}+{_SMALL}*{_CONTRACTION}?|\p{{N}}{{1,3}}|{_CASED_REST}"

_CJK = "[一-龥\u0800-一가-\ud7ff]+"
_KANA = "[一-龥\u3040-\u309f\u30a0-\u30ff]+"
_CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώ"
    "ᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏"
    "𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_WIDE_PUNCTUATION = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
_PUNCTUATED = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
    r" ?[\p{P}\p{S}]+[\r\n]*|" + _BREAKS
)
_BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"


def _cut(*expressions: str) -> list[PreTokenizer]:
    """Each expression cuts what those before it have left whole; matches and what is between them are the parts."""
    return [pre.Split(Regex(expression), behavior="isolated") for expression in expressions]


def _words(*expressions: str) -> Callable[[], PreTokenizer]:
    return lambda: pre.Sequence([*_cut(*expressions), _bytes()])


def _bytes() -> PreTokenizer:
    return pre.ByteLevel(add_prefix_space=False, use_regex=False)


def _byte_level() -> PreTokenizer:
    return pre.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_then_byte_level() -> PreTokenizer:
    return pre.Sequence([pre.Digits(individual_digits=True), _byte_level()])


def _falcon() -> PreTokenizer:
    return pre.Sequence([pre.Punctuation("contiguous"), _byte_level(), pre.Digits(), *_cut("[0-9][0-9][0-9]")])


def _digits(*expressions: str) -> Callable[[], PreTokenizer]:
    """Words, in which each digit stands by itself."""
    return lambda: pre.Sequence(
        [
            *_cut(*expressions),
            pre.Digits(individual_digits=True),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


# Of white space at the end, the part of each run that begins it: the published \s+$ tries each space of a run.
_TRAILING = r"(?<!\s)\s++$"
_DEEPSEEK_LLM = ("[\r\n]", rf"\s?[{_CASED_LETTERS}]+", rf"\s?[{_WIDE_PUNCTUATION}]+", _TRAILING, _CJK)
_DEEPSEEK_CODER = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK)
_DEEPSEEK_V3 = (r"\p{N}{1,3}", _KANA, _PUNCTUATED)
_DEFAULT = (r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")

_LLAMA3 = ByteLevelScheme(_words(_GPT4), adds_bos=True, ignore_merges=True)

# By tokenizer.ggml.pre.
PRE_TOKENIZERS: dict[str, ByteLevelScheme] = {
    "bailingmoe": ByteLevelScheme(_words(_BAILING)),
    "bloom": ByteLevelScheme(_words(_BLOOM)),
    "command-r": ByteLevelScheme(_digits_then_byte_level, composes=True),
    "dbrx": ByteLevelScheme(_words(_GPT4)),
    "deepseek-coder": ByteLevelScheme(_digits(*_DEEPSEEK_CODER)),
    "deepseek-llm": ByteLevelScheme(_digits(*_DEEPSEEK_LLM)),
    "deepseek-r1-qwen": ByteLevelScheme(_words(_QWEN2)),
    "deepseek-v3": ByteLevelScheme(_words(*_DEEPSEEK_V3)),
    "default": ByteLevelScheme(_words(*_DEFAULT)),
    "falcon": ByteLevelScheme(_falcon),
    "falcon3": _LLAMA3,
    "gpt-2": ByteLevelScheme(_byte_level),
    "gpt-4o": ByteLevelScheme(_words(_GPT4O)),
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "llama4": ByteLevelScheme(_words(_GPT4O)),
    "megrez": ByteLevelScheme(_words(_QWEN2)),
    "mpt": ByteLevelScheme(_byte_level, composes=True),
    "olmo": ByteLevelScheme(_byte_level, composes=True),
    "phi-2": ByteLevelScheme(_byte_level),
    "poro-chat": ByteLevelScheme(_words(_BLOOM)),
    "qwen2": ByteLevelScheme(_words(_QWEN2), composes=True),
    "qwen35": ByteLevelScheme(_words(_QWEN35), composes=True),
    "refact": ByteLevelScheme(_digits_then_byte_level),
    "seed-coder": ByteLevelScheme(_words(_SEED_CODER)),
    "smaug-bpe": ByteLevelScheme(_words(_GPT4)),
    "smollm": ByteLevelScheme(_digits_then_byte_level),
    "starcoder": ByteLevelScheme(_digits_then_byte_level),
    "tekken": ByteLevelScheme(_words(_TEKKEN), adds_bos=True, ignore_merges=True),
    "viking": ByteLevelScheme(_digits(_BLOOM)),
}

# By tokenizer.ggml.model, where the file's "pre" means nothing.
PIECES: dict[str, PieceScheme] = {
    "llama": PieceScheme(),
    "gemma4": PieceScheme(merges_by_score=False, line_words=True, adds_space=False),
}


def scheme_of(metadata: Mapping[str, object]) -> ByteLevelScheme | PieceScheme:
    """Raises ModelFileError that lists what is known."""
    model, name = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if isinstance(model, str) and model in PIECES:
        return PIECES[model]
    if model != "gpt2":
        known = '"gpt2" (byte-level BPE), "llama" (pieces merged by score), "gemma4" (ranked pieces)'
        raise ModelFileError(f"tokenizer.ggml.model is {model!r}; known: {known}")
    scheme = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if scheme is None:
        raise ModelFileError(f"tokenizer.ggml.pre is {name!r}; known: {', '.join(sorted(PRE_TOKENIZERS))}")
    return scheme
