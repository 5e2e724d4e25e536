"""The engine's tokens as llguidance wants them: the bytes of each, which are special, which end an answer.

Special tokens have no text, so no grammar allows them but an end token where the grammar is complete. Forced text is
cut as the model's own tokenizer cuts it, so that what a grammar forces is what the model was trained to see.
"""

from __future__ import annotations

import llguidance

from tailrace.errors import InvalidRequest
from tailrace.text.tokenizer import Tokenizer


class _Wrapper(llguidance.TokenizerWrapper):
    """What LLTokenizer reads. `made`: the tokenizer made of this, for text that ours changes."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:  # the base's would look for a tokenizer of its kind
        known = min(size, tokenizer.vocab_size)
        self._tokenizer = tokenizer
        self.made: llguidance.LLTokenizer | None = None
        self.tokens = [tokenizer.token_bytes(i, special=True) or b"<%d>" % i for i in range(known)]
        self.tokens += [b"<unused %d>" % i for i in range(known, size)]
        empty = [i for i in range(known) if not tokenizer.token_bytes(i, special=True)]
        self.special_token_ids = sorted({*tokenizer.special_ids, *empty, *range(known, size)})
        self.eos_token_id = min(tokenizer.end_ids)

    def __call__(self, text: str) -> list[int]:
        """Its tokens. Text that goes on where another ended gets no space in front, whatever the tokenizer adds."""
        ids: list[int] = self._tokenizer.encode(text, add_special=False, parse_special=False).tolist()
        data = text.encode()
        if b"".join([self.tokens[i] for i in ids]) == data:
            return ids
        assert self.made is not None
        return self.made.greedy_tokenize(text)


def make_vocabulary(tokenizer: Tokenizer, size: int) -> llguidance.LLTokenizer:
    """`size`: tokens that the model has logits for. Takes 0.2 s for 49,152 tokens, 1.6 s for 262,144.

    Raises InvalidRequest for a model without an end token: it could not end an answer.
    """
    if not tokenizer.end_ids:
        raise InvalidRequest("this model names no end token, so that no grammar can say where an answer ends")
    wrapper = _Wrapper(tokenizer, size)
    wrapper.made = llguidance.LLTokenizer(wrapper, eos_token=sorted(tokenizer.end_ids))
    return wrapper.made
