"""The tokenizer that a Gemma file describes, in a few plain lines."""

from __future__ import annotations

import itertools

from tests.reference.gguf_file import GgufFile


class SentencePieces:
    """Start from characters and always merge the pair with the best score."""

    def __init__(self, file: GgufFile) -> None:
        tokens, scores = file.value("tokenizer.ggml.tokens"), file.value("tokenizer.ggml.scores")
        self._ids = {token: index for index, token in enumerate(tokens)}
        self._scores = scores

    def encode(self, text: str) -> list[int]:
        parts = list(text.replace(" ", "\u2581"))
        while True:
            candidates = [
                (self._scores[self._ids[a + b]], -i)
                for i, (a, b) in enumerate(itertools.pairwise(parts))
                if a + b in self._ids
            ]
            if not candidates:
                return [i for part in parts for i in self._ids_of(part)]
            at = -max(candidates)[1]
            parts[at : at + 2] = [parts[at] + parts[at + 1]]

    def _ids_of(self, part: str) -> list[int]:
        if part in self._ids:
            return [self._ids[part]]
        return [self._ids[f"<0x{byte:02X}>"] for byte in part.encode()]
