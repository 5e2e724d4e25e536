"""`python -m tests.conformance.json_schema FOLDER`: our JSON Schemas against those of the JSON-Schema-Test-Suite.

FOLDER is one draft's of a checkout (.../tests/draft2020-12); `--optional` adds its optional/ files. For every schema
that we take, each instance of the suite is written as our answers are written and put to the grammar, and some random
answers are drawn and validated with `jsonschema`. An invalid instance that passes, and an answer that is invalid, are
failures. Valid instances that do not pass are counted (properties keep the schema's order, so some cannot), and so is
what we refuse, by the reason. Exit status 1 with failures.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import jsonschema
import llguidance
import numpy as np

from tailrace.engine.grammar.compiler import LIMITS
from tailrace.engine.grammar.guard import Guard
from tailrace.errors import InvalidRequest
from tailrace.protocol.json_schema import schema_source

SECONDS = 3.0  # to compile a schema
ANSWERS = 5  # random ones of each schema
LENGTH = 400  # bytes of a random answer at the most

VALIDATORS = {
    "draft4": jsonschema.Draft4Validator,
    "draft6": jsonschema.Draft6Validator,
    "draft7": jsonschema.Draft7Validator,
    "draft2019-09": jsonschema.Draft201909Validator,
    "draft2020-12": jsonschema.Draft202012Validator,
}


@dataclass
class Report:
    schemas: int = 0
    taken: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    passed: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def show(self) -> None:
        print(f"{self.schemas} schemas, {self.taken} taken; of those:")
        for what, count in sorted(self.passed.items()):
            print(f"  {count:5} {what}")
        print("refused, by reason:")
        for reason, count in self.refused.most_common():
            print(f"  {count:5} {reason}")
        print(f"{len(self.failures)} failures")
        for failure in self.failures:
            print(f"  {failure}")


class Suite:
    def __init__(self, validator: Any, seed: int = 0) -> None:
        self.report = Report()
        self._validator = validator
        self._guard = Guard(LIMITS, SECONDS)
        self._limits = llguidance.LLParserLimits(**LIMITS)  # type: ignore[arg-type]
        self._bytes = llguidance.LLTokenizer("byte")
        self._random = random.Random(seed)

    def close(self) -> None:
        self._guard.close()

    def run(self, name: str, group: dict[str, Any]) -> None:
        """One schema with its instances."""
        self.report.schemas += 1
        where = f"{name}: {group['description']}"
        try:
            grammar = self._grammar(group["schema"])
        except InvalidRequest as refused:
            self.report.refused[reason(refused.message)] += 1
            return
        self.report.taken += 1
        for test in group["tests"]:
            accepted = self._accepts(grammar, test["data"])
            self.report.passed[f"{_word(test['valid'])} instances {'accepted' if accepted else 'not accepted'}"] += 1
            if accepted and not test["valid"]:
                self.report.failures.append(f"{where}: takes {json.dumps(test['data'])[:80]} ({test['description']})")
        for _ in range(ANSWERS):
            self._answer(grammar, group["schema"], where)

    def _grammar(self, schema: object) -> llguidance.LLMatcher:
        text = llguidance.LLMatcher.grammar_from_json_schema(schema_source(schema, "schema"))
        refusal = self._guard.refusal(text)
        if refusal is not None:
            raise InvalidRequest(refusal)
        return llguidance.LLMatcher(self._bytes, text, log_level=0, limits=self._limits)

    def _accepts(self, grammar: llguidance.LLMatcher, instance: object) -> bool:
        """Also with its properties in other orders: one that passes is enough."""
        texts = {json.dumps(each, ensure_ascii=False) for each in orders(instance)}
        return any(self._takes(grammar, text) for text in texts)

    def _takes(self, grammar: llguidance.LLMatcher, text: str) -> bool:
        matcher = grammar.deep_copy()
        try:
            data = text.encode()
        except UnicodeEncodeError:
            return False
        return matcher.try_consume_tokens(list(data)) == len(data) and matcher.is_accepting()

    def _answer(self, grammar: llguidance.LLMatcher, schema: Any, where: str) -> None:
        text = draw(grammar.deep_copy(), self._random)
        if text is None:
            self.report.passed["random answers cut"] += 1
            return
        self.report.passed["random answers"] += 1
        try:
            valid = self._validator(exactly(json.dumps(schema))).is_valid(exactly(text))
        except re.error:
            self.report.passed["random answers to patterns that Python has not"] += 1
            return
        if not valid:
            self.report.failures.append(f"{where}: makes {text[:120]!r}")


def draw(matcher: llguidance.LLMatcher, dice: random.Random) -> str | None:
    """A random answer; None when it becomes too long or breaks a character. Ends are likelier than going on."""
    data = bytearray()
    while len(data) < LENGTH:
        if matcher.is_stopped() or (matcher.is_accepting() and dice.random() < 0.3):
            break
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little"))
        choices = [int(token) for token in allowed if token < 128] or [int(token) for token in allowed if token < 256]
        closing = [token for token in choices if token in b'"]},']
        token = dice.choice(closing if closing and dice.random() < 0.3 else choices)
        if not matcher.consume_token(token):
            return None
        data.append(token)
    if not matcher.is_accepting():
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def orders(instance: Any) -> Iterator[Any]:
    """The instance, and with the properties of all its objects backwards and sorted."""
    yield instance
    yield ordered(instance, lambda items: items[::-1])
    yield ordered(instance, sorted)


def ordered(value: Any, order: Any) -> Any:
    if isinstance(value, dict):
        return {key: ordered(value[key], order) for key in order(list(value))}
    return [ordered(each, order) for each in value] if isinstance(value, list) else value


def exactly(text: str) -> Any:
    """74001.726 is a multiple of 0.001, but not in binary."""

    def number(digits: str) -> float | Decimal:
        try:
            return Decimal(digits)
        except InvalidOperation:  # an exponent of many digits
            return float(digits)

    return json.loads(text, parse_float=number)


def reason(message: str) -> str:
    """Without what differs from schema to schema, but the keywords."""
    text = message.removeprefix("schema: ").splitlines()[0]
    return re.sub(r"json-schema:\S*", "...", text)[:100]


def _word(valid: bool) -> str:
    return "valid" if valid else "invalid"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--optional", action="store_true")
    options = parser.parse_args()
    suite = Suite(VALIDATORS[options.folder.name])
    try:
        pattern = "**/*.json" if options.optional else "*.json"
        for path in sorted(options.folder.glob(pattern)):
            for group in json.loads(path.read_text(encoding="utf-8")):
                suite.run(str(path.relative_to(options.folder)), group)
    finally:
        suite.close()
    suite.report.show()
    return 1 if suite.report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
