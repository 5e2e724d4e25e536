"""tokenizer.json and the files beside it, written by the library itself from vocabularies that are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from tailrace.errors import ModelFileError
from tailrace.text.stream import TextStream
from tailrace.text.tokenizer import Tokenizer
from tailrace.types import StopConditions
from tests.text.vocabularies import END_OF_TEXT, IM_END, IM_START, tiny
from tests.tiny import SPECIAL_TOKENS, tiny_tokenizer

SPACE = "\u2581"
texts = st.text(st.sampled_from("ab  \n€") | st.characters(exclude_categories=("Cs",)), max_size=20)


def byte_level() -> Library:
    """The tiny vocabulary of the GGUF tests, with two tokens outside the model: a marker that is text, and a control
    token that takes the white space in front of it."""
    tokens, merges = tiny_tokenizer()
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    library = Library(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs))
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL_TOKENS])
    library.add_tokens([AddedToken("<think>", normalized=False)])
    return library


def pieces() -> Library:
    vocabulary = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        SPACE,
        "a",
        "b",
        SPACE + "a",
        "ab",
    ]
    merges = [(SPACE, "a"), ("a", "b")]
    model = models.BPE(
        vocab={token: i for i, token in enumerate(vocabulary)},
        merges=merges,
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    library = Library(model)
    library.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    library.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    library.add_special_tokens([AddedToken(token, normalized=False) for token in ("<unk>", "<s>", "</s>")])
    return library


def write(folder: Path, library: Library, **files: Any) -> Path:
    folder.mkdir(exist_ok=True)
    library.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def byte_level_folder(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_hf(write(tmp_path_factory.mktemp("byte-level"), byte_level()))


@pytest.fixture(scope="module")
def pieces_folder(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    return Tokenizer.from_hf(write(tmp_path_factory.mktemp("pieces"), pieces(), tokenizer_config=settings))


@given(text=texts | texts.map(lambda text: f"{text}<|im_end|>{text}"))
def test_the_same_vocabulary_gives_the_same_ids_as_from_a_gguf_file(byte_level_folder: Tokenizer, text: str) -> None:
    for parse in (True, False):
        ids = byte_level_folder.encode(text, add_special=True, parse_special=parse).tolist()
        assert ids == tiny().encode(text, add_special=True, parse_special=parse).tolist()
    assert byte_level_folder.decode(ids) == text


def test_bytes_and_special_tokens(byte_level_folder: Tokenizer) -> None:
    tokenizer, marker = byte_level_folder, tiny().vocab_size
    assert tokenizer.special_ids == {END_OF_TEXT, IM_START, IM_END}
    assert tokenizer.end_ids == {END_OF_TEXT, IM_END}
    assert [tokenizer.token_bytes(i) for i in range(marker)] == [tiny().token_bytes(i) for i in range(marker)]
    assert tokenizer.token_bytes(marker) == b"<think>"
    assert tokenizer.encode("a<think>", add_special=False, parse_special=False)[1] == marker
    assert (tokenizer.wants_bos, tokenizer.bos_id) == (False, None)


@given(text=texts)
def test_pieces_come_back_without_the_space_in_front(pieces_folder: Tokenizer, text: str) -> None:
    ids = pieces_folder.encode_rendered(text).tolist()
    assert ids[0] == 1
    assert pieces_folder.decode(ids, skip_special=True) == text
    assert pieces_folder.decode(ids) == "<s>" + text
    assert 1 not in pieces_folder.encode("<s>", add_special=False, parse_special=False)
    assert pieces_folder.fewest_tokens(len(text.encode())) <= len(ids)


@given(text=texts, data=st.data())
def test_streaming_any_tokens_gives_what_decoding_gives(
    pieces_folder: Tokenizer, text: str, data: st.DataObject
) -> None:
    tokenizer = pieces_folder
    prompt = tokenizer.encode_rendered("a" + text).tolist()
    answer = data.draw(st.lists(st.integers(3, tokenizer.vocab_size - 1), max_size=12))
    stream = TextStream(tokenizer, StopConditions(max_tokens=99), tokenizer.end_ids)
    streamed = "".join([stream.push(i).text for i in answer]) + stream.finish()
    assert tokenizer.decode(prompt + answer) == tokenizer.decode(prompt) + streamed


def test_the_files_beside_it_say_what_begins_and_ends(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        byte_level(),
        tokenizer_config={"bos_token": "<|im_start|>", "eos_token": "<|endoftext|>", "add_bos_token": True},
        generation_config={"eos_token_id": [7, 9]},
        config={"eos_token_id": 8, "vocab_size": 400},
    )
    tokenizer = Tokenizer.from_hf(folder)
    assert (tokenizer.bos_id, tokenizer.encode_rendered("a")[0]) == (IM_START, IM_START)
    assert tokenizer.end_ids == {END_OF_TEXT, IM_END, 7, 8, 9}
    assert tokenizer.vocab_size == 400  # rows of the model beyond the tokens have no text
    assert tokenizer.token_bytes(399) == b""
    (folder / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 500}, "bos_token_id": 3}))
    (folder / "tokenizer_config.json").unlink()
    tokenizer = Tokenizer.from_hf(folder)
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.wants_bos) == (500, 3, False)


def test_what_the_file_itself_puts_around_a_text_counts_unless_the_settings_say_otherwise(tmp_path: Path) -> None:
    library = pieces()
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer = Tokenizer.from_hf(write(tmp_path, library))
    assert (tokenizer.bos_id, tokenizer.wants_bos) == (1, True)
    assert tokenizer.encode("a", add_special=True, parse_special=False)[[0, -1]].tolist() == [1, 2]
    without = {"add_bos_token": False, "add_eos_token": False}
    tokenizer = Tokenizer.from_hf(write(tmp_path, library, tokenizer_config=without))
    assert len(tokenizer.encode("a", add_special=True, parse_special=False)) == 1


def test_tokens_that_only_the_settings_name_are_added(tmp_path: Path) -> None:
    new = tiny().vocab_size + 1
    settings = {
        "added_tokens_decoder": {str(new): {"content": "<|new|>", "special": True}, "2": {"content": "<|im_end|>"}}
    }
    tokenizer = Tokenizer.from_hf(write(tmp_path, byte_level(), tokenizer_config=settings))
    assert tokenizer.encode_rendered("<|new|>").tolist() == [new]
    assert new not in tokenizer.encode("<|new|>", add_special=False, parse_special=False)
    settings = {"added_tokens_decoder": {"5": {"content": "<|new|>"}}}
    with pytest.raises(ModelFileError, match=r"the id 5, which tokenizer.json has taken"):
        Tokenizer.from_hf(write(tmp_path, byte_level(), tokenizer_config=settings))


@pytest.mark.parametrize(
    ("normalizer", "splitter", "fewest"),
    [
        (None, None, 2),
        (normalizers.NFC(), None, 1),
        (normalizers.Strip(), None, 0),
        (normalizers.Replace("a", ""), None, 0),
        (None, pre_tokenizers.WhitespaceSplit(), 0),
        (None, pre_tokenizers.Split(Regex(" "), "removed"), 0),
    ],
)
def test_the_fewest_tokens_are_known_only_where_no_text_is_dropped(
    tmp_path: Path, normalizer: Any, splitter: Any, fewest: int
) -> None:
    library = byte_level()
    if normalizer is not None:
        library.normalizer = normalizer
    if splitter is not None:
        library.pre_tokenizer = splitter
    tokenizer = Tokenizer.from_hf(write(tmp_path, library))
    assert tokenizer.fewest_tokens(2 * tokenizer.max_token_bytes) == fewest


def test_a_file_that_cuts_or_pads_encodes_the_whole_text_all_the_same(tmp_path: Path) -> None:
    library = byte_level()
    library.enable_truncation(2)
    library.enable_padding(length=9)
    tokenizer = Tokenizer.from_hf(write(tmp_path, library))
    assert tokenizer.decode(tokenizer.encode_rendered("hello world, hello")) == "hello world, hello"
    assert len(tokenizer.encode_rendered("a")) == 1


def without_decoder(library: Library) -> Library:
    library.decoder = None
    return library


def with_two_in_front(library: Library) -> Library:
    library.post_processor = processors.TemplateProcessing(single="<s> <s> $A", special_tokens=[("<s>", 1)])
    return library


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, "tokenizer.json is missing; a model folder needs it"),
        ("tokenizer.json", "{", "tokenizer.json cannot be used"),
        ("tokenizer.json", "{}", "tokenizer.json cannot be used"),
        ("tokenizer.json", without_decoder(byte_level()).to_str(), "the decoder is None; known: ByteLevel"),
        ("tokenizer.json", with_two_in_front(pieces()).to_str(), "more than one token before or after a text"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {}}}', "must be an object with token ids as keys"),
        ("config.json", "[1]", "config.json holds no JSON object"),
        ("generation_config.json", "{", "generation_config.json cannot be read as JSON"),
        ("config.json", '{"vocab_size": 1000000000000}', "mean 1000000000000 tokens"),
    ],
)
def test_a_folder_that_cannot_be_used_says_what_was_found(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    folder = write(tmp_path, byte_level())
    (folder / name).unlink(missing_ok=True)
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(ModelFileError) as caught:
        Tokenizer.from_hf(folder)
    assert message in caught.value.message
