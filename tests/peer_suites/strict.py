"""A client library's objects held to the types it declares: nothing missing, nothing of a wrong type, nothing more.

The libraries build their objects without a check, so that an odd answer still reaches the program. Here the checks
are made: an object of ours must validate as the class the library chose for it, and fields that the class does not
have must be among our documented additions.

OpenAI's own answers to /v1/completions are not quite what its package declares: `finish_reason` is null until the last
chunk, and an echoed prompt's first token has no log-probability. Ours do the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openai.types import Completion
from pydantic import BaseModel, ValidationError

OURS = frozenset(
    {
        *("timings", "reasoning_content", "stop_reason", "store", "prompt_tokens_details"),
        *("loaded", "max_model_len", "parent"),  # of a model
        "bytes",  # of a streamed token of Responses; the type of the whole answer has it
        "name",  # of response.function_call_arguments.done; earlier versions of the type require it
    }
)
NULL_AT_OPENAI = frozenset({"finish_reason", "token_logprobs", "top_logprobs"})


def check(value: BaseModel) -> str:
    """The name of its type. ValidationError or AssertionError if it is not what the type says."""
    kind: type[BaseModel] = type(value)
    try:
        kind.model_validate(value.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False))
    except ValidationError as error:
        if kind is not Completion or not all(map(_null_at_openai, error.errors())):
            raise
    extra = set(_extra(value)) - OURS
    assert not extra, f"{kind.__name__} has no fields {sorted(extra)}"
    return str(getattr(value, "type", None) or getattr(value, "object", kind.__name__))


def _null_at_openai(error: Any) -> bool:
    return error["input"] is None and bool(NULL_AT_OPENAI.intersection(error["loc"]))


def _extra(value: Any) -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from value.model_extra or ()
        for name in value.model_fields_set:
            yield from _extra(getattr(value, name, None))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _extra(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _extra(item)


def check_all(values: Any) -> str:
    """Checks every event of a stream; how many there were of which types."""
    kinds = [check(value) for value in values]
    assert kinds, "no events"
    return f"{len(kinds)} objects, {len(set(kinds))} types"
