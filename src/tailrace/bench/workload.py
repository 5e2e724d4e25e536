"""What is sent: conversations ("talks") of one or more turns. A pure function of seed, run and number of the talk.

Talks are made one at a time, just ahead of being sent, so that a long trace costs no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import orjson

from tailrace.bench.lengths import Lengths, parse_lengths
from tailrace.bench.options import Options
from tailrace.bench.pieces import Pieces, Segment
from tailrace.errors import ConfigError
from tailrace.figures.quantities import wrong
from tailrace.frozen import frozen
from tailrace.traces import TraceRow, scaled

Message = dict[str, Any]
Prompt = str | list[int] | list[Message]


@frozen
class Turn:
    """`asked_prompt`: tokens the whole prompt should count; None where it is not ours to say (files, later turns)."""

    prompt: Prompt
    output_tokens: int
    asked_prompt: int | None = None


@frozen
class Talk:
    index: int
    turns: tuple[Turn, ...]


Maker = Callable[[int, Random], tuple[Turn, ...]]


class Workload:
    """`salt` names seed and run: another run gets other prompts, so that no run finds the last one's in a cache."""

    def __init__(self, options: Options, pieces: Pieces, salt: str, trace: list[TraceRow] | None = None) -> None:
        self._options, self._pieces, self._salt = options, pieces, salt
        self.length = len(trace) if trace else None  # talks there are; None: as many as one likes
        self._make = self._trace_maker(trace) if trace else self._maker()

    def talk(self, index: int) -> Talk:
        return Talk(index, self._make(index, Random(f"{self._salt}/talk/{index}")))

    def talks(self) -> Iterator[Talk]:
        numbers = count() if self.length is None else iter(range(self.length))
        return map(self.talk, numbers)

    # --- one maker for each workload

    def _maker(self) -> Maker:
        options = self._options
        if options.workload == "file":
            return self._file_maker()
        if options.workload == "mixed":
            return self._mixed_maker([_parse_mix(text) for text in options.mix])
        drawn_input = parse_lengths(options.input, "--input", "input_tokens")
        drawn_output = self._outputs()
        if options.workload == "shared-prefix":
            return lambda i, rng: (self._shared(i, rng, drawn_input(rng), drawn_output(rng)),)
        if options.workload == "multi-turn":
            turns = parse_lengths(options.turns, "--turns", "turns")
            return lambda i, rng: tuple(
                self._turn(f"own/{i}/{n}", drawn_input(rng), drawn_output(rng), first=n == 0) for n in range(turns(rng))
            )
        return lambda i, rng: (self._turn(f"own/{i}", drawn_input(rng), drawn_output(rng)),)

    def _outputs(self) -> Lengths:
        return parse_lengths(self._options.output, "--output", "output_tokens")

    def _shared(self, index: int, rng: Random, tokens: int, output: int) -> Turn:
        prefix = Segment(f"prefix/{rng.randrange(self._options.prefixes)}", self._options.prefix_tokens)
        return self._built([prefix, Segment(f"own/{index}", self._bounded(tokens))], output)

    def _mixed_maker(self, mix: list[tuple[float, Lengths, Lengths]]) -> Maker:
        weights = [weight for weight, _, _ in mix]

        def make(index: int, rng: Random) -> tuple[Turn, ...]:
            _, tokens, output = rng.choices(mix, weights)[0]
            return (self._turn(f"own/{index}", tokens(rng), output(rng)),)

        return make

    def _trace_maker(self, trace: list[TraceRow]) -> Maker:
        return lambda i, rng: (self._replayed(i, scaled(trace[i], self._options.length_scale)),)

    def _replayed(self, index: int, row: TraceRow) -> Turn:
        """Equal hash ids become equal text; the last block, and what has no hash, ends where the input ends."""
        left, segments = self._bounded(row.input_tokens), []
        for block in row.blocks:
            if left >= row.block_tokens:
                segments.append(Segment(f"block/{block}", row.block_tokens))
                left -= row.block_tokens
        if left or not segments:
            segments.append(Segment(f"own/{index}", left))
        return self._built(segments, row.output_tokens)

    def _file_maker(self) -> Maker:
        options = self._options
        rows = read_prompts(Path(options.prompts), options.prompt_field, options.output_field)
        drawn = self._outputs()

        def make(index: int, rng: Random) -> tuple[Turn, ...]:
            prompts, output = rows[index % len(rows)]
            return tuple(Turn(prompt, self._answer(output or drawn(rng))) for prompt in prompts)

        return make

    # --- parts

    def _turn(self, key: str, tokens: int, output: int, first: bool = True) -> Turn:
        segments = [Segment(key, self._bounded(tokens))]
        if first:
            return self._built(segments, output)
        return Turn(self._pieces.prompt(segments, self._salt), self._answer(output))

    def _built(self, segments: list[Segment], output: int) -> Turn:
        pieces = self._pieces
        return Turn(pieces.prompt(segments, self._salt), self._answer(output), pieces.asked(segments))

    def _bounded(self, tokens: int) -> int:
        return min(tokens, self._options.max_input or tokens)

    def _answer(self, tokens: int) -> int:
        return min(tokens, self._options.max_output or tokens)


def _parse_mix(text: str) -> tuple[float, Lengths, Lengths]:
    parts = text.split()
    try:
        weight = float(parts[0])
    except (ValueError, IndexError):
        weight = 0.0
    if len(parts) != 3 or not 0 < weight < 1e9:
        raise wrong("--mix", text, "'WEIGHT INPUT OUTPUT', such as '3 fixed:128 fixed:32'")
    return weight, parse_lengths(parts[1], "--mix", "input_tokens"), parse_lengths(parts[2], "--mix", "output_tokens")


def read_prompts(path: Path, field: str, output_field: str) -> list[tuple[list[Prompt], int | None]]:
    """Per line the turns of a conversation, and the answer's length if the file has one. Raises ConfigError."""
    rows = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"--prompts {path}: {error}", param="--prompts") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                value = orjson.loads(line)
                rows.append((_turns(value[field]), int(value[output_field]) if output_field else None))
            except (KeyError, TypeError, ValueError) as error:
                what = f"there is no field {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
                raise ConfigError(
                    f"--prompts {path}, line {number}: {what}; see --prompt-field, --output-field", param="--prompts"
                ) from error
    if not rows:
        raise ConfigError(f"--prompts {path}: there are no prompts in it", param="--prompts")
    return rows


def _turns(value: object) -> list[Prompt]:
    """A text, texts that are asked one after another, messages, or lists of messages asked one after another."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(part, str) for part in value):
            return list(value)
        if all(isinstance(part, dict) and "role" in part for part in value):
            return [value]
        if all(isinstance(part, list) for part in value):
            return [messages for part in value for messages in _turns(part)]
    raise ValueError("a prompt is a text, a list of texts, or a list of messages")
