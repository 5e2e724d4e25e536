"""Where failures belong and what kind they are."""

from __future__ import annotations

import pytest

from tailrace import errors
from tailrace.clock import ManualClock
from tailrace.control.admission import Reject, refusal
from tailrace.errors import Domain, ErrorKind, TailraceError, Unavailable
from tailrace.observe.timeline import Timeline

CLASSES = sorted(
    (each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, TailraceError)),
    key=lambda each: each.__name__,
)


@pytest.mark.parametrize("of", CLASSES)
def test_every_error_has_a_domain_and_a_kind(of: type[TailraceError]) -> None:
    error = of("it failed")
    assert isinstance(error.domain, Domain)
    assert isinstance(error.kind, ErrorKind)


def test_the_tree_in_the_docs_names_every_error() -> None:
    assert errors.__doc__ is not None
    assert [of.__name__ for of in CLASSES if of.__name__ not in errors.__doc__] == []


def test_what_is_said_where_it_is_raised_is_of_that_error_alone() -> None:
    error = Unavailable("away", domain=Domain.EXTERNAL, kind=ErrorKind.UPSTREAM)
    assert (error.domain, error.kind) == (Domain.EXTERNAL, ErrorKind.UPSTREAM)
    assert (Unavailable("off").domain, Unavailable("off").kind) == (Domain.ADMISSION, ErrorKind.STOPPED)


@pytest.mark.parametrize(
    ("reason", "status", "kind"),
    [
        ("queue_full", 429, ErrorKind.CAPACITY),
        ("queue_too_long", 503, ErrorKind.TIMEOUT),
        ("queue_deadline", 503, ErrorKind.TIMEOUT),
        ("deadline_unattainable", 503, ErrorKind.TIMEOUT),
        ("draining", 503, ErrorKind.STOPPED),
    ],
)
def test_refusals_belong_to_admission(reason: str, status: int, kind: ErrorKind) -> None:
    error = refusal(Reject(reason, status))
    assert (error.domain, error.kind) == (Domain.ADMISSION, kind)


def test_the_record_has_both() -> None:
    timeline = Timeline(ManualClock())
    timeline.failed(errors.InvalidTools("no such tool"))
    assert (timeline.facts["error_domain"], timeline.facts["error_kind"]) == ("ingress", "tool")
