"""What kind of request this is, and in which band it waits. Pure: plain numbers and configured rules."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from tailrace.frozen import frozen
from tailrace.policy import ClassRule, RequestClass
from tailrace.types import Traits


class Band(IntEnum):
    """Strict order between requests of different bands, but for a small guaranteed share of each lower one."""

    HIGH = 0
    NORMAL = 1
    BACKGROUND = 2


_SOONER = frozenset(("priority", "fast"))  # OpenAI's service tiers, by what they ask for
_LATER = frozenset(("flex", "batch"))
_VECTORS = frozenset(("embeddings", "rerank", "score"))  # routes


@frozen
class Subject:
    """What is looked at. `expected_output`: tokens a choice is expected to write, not the most it may."""

    traits: Traits
    uncached_tokens: int
    expected_output: float
    tenant: str = "default"
    key: str = ""
    model: str = ""


@frozen
class Rules:
    """`long_prompt` uncached tokens, or `long_output` expected ones, make a request long."""

    long_prompt: int = 1024
    long_output: int = 1024
    configured: Sequence[ClassRule] = ()


@frozen
class Kind:
    request_class: RequestClass
    reason: str


def classify(subject: Subject, rules: Rules) -> Kind:
    """Configured rules first, of which the first that matches; then what the caller says, then its size."""
    for number, rule in enumerate(rules.configured):
        if _matches(rule, subject):
            return Kind(rule.request_class, f"rule_{number + 1}")
    return by_word(subject.traits) or _by_size(subject, rules)


def _matches(rule: ClassRule, subject: Subject) -> bool:
    traits = subject.traits
    stated = (
        (rule.tenant, subject.tenant),
        (rule.key, subject.key),
        (rule.model, subject.model),
        (rule.route, traits.route),
        (rule.origin, traits.origin),
        (rule.service_tier, traits.service_tier),
    )
    return (
        all(not wanted or wanted == given for wanted, given in stated)
        and rule.tools in (None, traits.tools)
        and rule.attachments in (None, traits.attachments > 0)
        and subject.uncached_tokens >= rule.from_tokens
    )


def by_word(traits: Traits) -> Kind | None:
    """By what it says of itself; None where only its size can tell."""
    if traits.origin == "job":
        return Kind(RequestClass.BACKGROUND, "origin_job")
    if traits.service_tier in _LATER:
        return Kind(RequestClass.BACKGROUND, "service_tier")
    if traits.route in _VECTORS:
        return Kind(RequestClass.EMBEDDING, "route")
    if traits.tools:
        return Kind(RequestClass.AGENT, "tools")
    return None


def _by_size(subject: Subject, rules: Rules) -> Kind:
    if subject.uncached_tokens >= rules.long_prompt:
        return Kind(RequestClass.LONG, "prompt_tokens")
    if subject.expected_output >= rules.long_output:
        return Kind(RequestClass.LONG, "expected_output")
    return Kind(RequestClass.INTERACTIVE, "short")


def band(request_class: RequestClass, traits: Traits, ceiling: Band) -> Band:
    """`ceiling` is the highest band that the caller's tenant may use; a wish for more is lowered to it."""
    if request_class is RequestClass.BACKGROUND or traits.priority > 0:
        return Band.BACKGROUND
    sooner = traits.priority < 0 or traits.service_tier in _SOONER
    return max(Band.HIGH if sooner else Band.NORMAL, ceiling)


__all__ = ["Band", "ClassRule", "Kind", "RequestClass", "Rules", "Subject", "band", "by_word", "classify"]
