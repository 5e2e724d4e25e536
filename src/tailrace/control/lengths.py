"""How long answers are: quantiles of generated tokens by tenant, task and model, kept across restarts.

An expectation comes from the narrowest kind that has been seen often enough - tenant x task x model, then tenant x
model, model, everything - so that a new tenant begins with what is known about the model. Answers that were cut off
(by max_tokens, or because the client left) count as at least that long. Bounded in memory and on disk.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from pathlib import Path

import numpy as np

from tailrace.control.sketch import Scale, Sketch
from tailrace.frozen import frozen

log = logging.getLogger(__name__)

_ENOUGH = 20.0  # answers that make a kind worth asking
_MEMORY = 1000.0  # answers after which an old one counts 1/e
_KINDS = 1024  # kept at most; the one not used for longest goes first
_SAVE_EVERY = 256  # answers
_VERSION = 1
_PRIOR_MEDIAN, _PRIOR_SPREAD = 100.0, 1.2  # log-normal: what chat answers of unknown kind look like
_PRIOR_WEIGHT = 2.0  # answers that it counts as


Level = tuple[str, ...]


@frozen
class AnswerKind:
    """Of requests whose answers are alike. `task` is what the request is for, as far as one can see."""

    tenant: str
    task: str
    model: str

    def levels(self) -> tuple[Level, ...]:
        """Names of the sketches that it belongs to, narrow to wide."""
        return (self.tenant, self.task, self.model), (self.tenant, self.model), (self.model,), ()


@frozen
class Lengths:
    """Tokens of one answer: mean and quantiles."""

    mean: float
    q50: float
    q80: float
    q90: float


class LengthBook:
    def __init__(self, path: Path | None = None) -> None:
        """`path`: where it is kept; a file that is missing or broken begins anew."""
        self._path = path
        self._scale = Scale(1.0, 200_000.0, 0.1)
        self._sketches: OrderedDict[Level, Sketch] = OrderedDict()
        self._unsaved = 0
        self._prior = self._assumed()
        if path is not None:
            self._recall(path)

    def learn(self, kind: AnswerKind, tokens: int, *, cut: bool) -> None:
        """One answer has ended with so many tokens; `cut`: it would have gone on."""
        for name in kind.levels():
            self._sketch(name).add(max(tokens, 1), at_least=cut)
        self._unsaved += 1
        if self._unsaved >= _SAVE_EVERY:
            self.save()

    def expect(self, kind: AnswerKind, most: int, generated: int = 0) -> Lengths:
        """Whole lengths of an answer of at most `most` tokens that has `generated` already."""
        if most <= generated:
            return Lengths(most, most, most, most)
        sketch = self._known(kind, generated)
        quantiles = [min(value, most) for value in sketch.quantiles((0.5, 0.8, 0.9), generated)]
        return Lengths(max(sketch.mean(generated, most), generated), *quantiles)

    def mean(self, kind: AnswerKind, most: int, generated: int) -> float:
        """That of `expect` alone, in a third of its time: asked of every running answer now and then."""
        if most <= generated:
            return float(most)
        return max(self._known(kind, generated).mean(generated, most), generated)

    def save(self) -> None:
        """Leave it for the next start."""
        self._unsaved = 0
        if self._path is None:
            return
        kinds = {json.dumps(name): sketch.plain() for name, sketch in self._sketches.items()}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial = self._path.with_suffix(".partial")
            partial.write_text(json.dumps({"version": _VERSION, "kinds": kinds}))
            partial.replace(self._path)
        except OSError as error:
            log.warning("answer lengths could not be kept for the next start: %s", error)

    def _known(self, kind: AnswerKind, generated: int) -> Sketch:
        for name in kind.levels():
            sketch = self._sketches.get(name)
            if sketch is None or sketch.seen < _ENOUGH:
                continue
            if sketch.any(generated):
                self._sketches.move_to_end(name)
                return sketch
        return self._prior

    def _sketch(self, name: Level) -> Sketch:
        sketch = self._sketches.get(name)
        if sketch is None:
            if len(self._sketches) >= _KINDS:
                self._sketches.popitem(last=False)
            sketch = self._sketches[name] = Sketch(self._scale, _MEMORY, self._prior.counts.copy())
        self._sketches.move_to_end(name)
        return sketch

    def _assumed(self) -> Sketch:
        """What is expected while nothing is known, and what every sketch begins with."""
        away = np.log(self._scale.middles / _PRIOR_MEDIAN) / _PRIOR_SPREAD
        weights = np.exp(-0.5 * away**2)
        return Sketch(self._scale, _MEMORY, weights * (_PRIOR_WEIGHT / weights.sum()))

    def _recall(self, path: Path) -> None:
        try:
            found = json.loads(path.read_text())
            if found["version"] != _VERSION:
                return
            for name, plain in list(found["kinds"].items())[-_KINDS:]:
                sketch = Sketch(self._scale, _MEMORY)
                sketch.restore(plain)
                self._sketches[_level(name)] = sketch
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            log.warning("%s holds no answer lengths that can be used (%s): beginning anew", path, error)
            self._sketches.clear()


def _level(name: str) -> Level:
    """As the file has it. Raises ValueError for what is none."""
    found = json.loads(name)
    if not isinstance(found, list) or not all(isinstance(part, str) for part in found):
        raise ValueError(f"{name[:80]!r} is no list of names")
    return tuple(found)
