"""The parts of a request's time add up to the whole, whatever was noted in whatever order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.clock import ManualClock
from tailrace.observe.timeline import Phase, Timeline
from tailrace.observe.timings import timings
from tailrace.types import EngineFacts

moves = st.lists(
    st.tuples(
        st.sampled_from(["enter", "cut", "learn"]),
        st.sampled_from(list(Phase)),
        st.floats(0, 5),
        st.floats(-10, 100),
    ),
    max_size=30,
)


@given(moves, st.floats(0, 3))
def test_parts_add_up(steps: list[tuple[str, Phase, float, float]], rest: float) -> None:
    clock = ManualClock(now=50.0)
    timeline = Timeline(clock)
    learned = False
    for kind, phase, seconds, at in steps:
        clock.advance(seconds)
        if kind == "enter":
            timeline.enter(phase)
        elif kind == "cut":
            timeline.cut(phase, at)
        else:
            timeline.learn(EngineFacts(finished=at, started=at - 1, first_token=at - 0.5), first=not learned)
            learned = True
        parts = timeline.parts()
        assert sum(parts.values()) == timeline.total()
        assert min(parts.values()) >= 0
    clock.advance(rest)
    timeline.close("ok")
    clock.advance(1)
    assert sum(timeline.parts().values()) == timeline.total()
    times = timings(timeline)
    shown = times.ingress_ms + times.render_ms + times.queue_ms + times.prefill_ms + times.decode_ms + times.post_ms
    assert abs(shown - times.total_ms) < 1e-6


def passed(clock: ManualClock) -> Timeline:
    """A request whose phases last 1, 2, 3 ... ms in order."""
    timeline = Timeline(clock)
    for milliseconds, phase in enumerate(list(Phase)[1:], start=1):
        clock.advance(milliseconds / 1000)
        timeline.enter(phase)
    clock.advance(0.012)
    timeline.close("ok")
    return timeline


def test_each_phase_has_its_own_time() -> None:
    assert list(passed(ManualClock()).parts().values()) == [i * 1000 for i in range(1, 13)]


def test_a_skipped_phase_takes_nothing() -> None:
    clock = ManualClock()
    timeline = Timeline(clock)
    clock.advance(0.5)
    timeline.enter(Phase.DECODE)
    clock.advance(0.25)
    parts = timeline.parts()
    assert (parts[Phase.INGRESS], parts[Phase.PREFILL], parts[Phase.DECODE]) == (500_000, 0, 250_000)
    assert parts[Phase.POST] == 0


def test_entering_again_changes_nothing() -> None:
    clock = ManualClock()
    timeline = Timeline(clock)
    timeline.enter(Phase.DECODE)
    clock.advance(1)
    timeline.enter(Phase.DECODE)
    assert timeline.since_open(Phase.DECODE) == 0


def test_the_backend_knows_better_when_its_phases_began() -> None:
    clock = ManualClock(now=10.0)
    timeline = Timeline(clock)
    timeline.enter(Phase.QUEUE)
    timeline.enter(Phase.PREFILL)
    clock.advance(4)
    timeline.enter(Phase.DECODE)
    clock.advance(2)
    timeline.enter(Phase.POST)
    timeline.learn(EngineFacts(finished=15.0, started=11.0, first_token=13.0), first=True)
    timeline.learn(EngineFacts(finished=15.5, started=11.5, first_token=13.5), first=False)
    parts = timeline.parts()
    assert {p: parts[p] for p in (Phase.QUEUE, Phase.PREFILL, Phase.DECODE, Phase.POST)} == {
        Phase.QUEUE: 1_000_000,
        Phase.PREFILL: 2_000_000,
        Phase.DECODE: 2_500_000,
        Phase.POST: 500_000,
    }


def test_closing_twice_counts_once() -> None:
    clock = ManualClock()
    timeline = Timeline(clock)
    clock.advance(1)
    assert timeline.close("ok")
    clock.advance(1)
    assert not timeline.close("error")
    assert (timeline.outcome, timeline.total()) == ("ok", 1_000_000)


def test_timings_of_an_answer() -> None:
    timeline = passed(ManualClock())
    timeline.facts.update(prompt_tokens=5, cached_tokens=2, completion_tokens=20, longest=10)
    times = timings(timeline)
    assert (times.ingress_ms, times.render_ms, times.queue_ms) == (1.0, 3.0, 2 + 4 + 5 + 6 + 7 + 8 + 9)
    assert (times.prefill_ms, times.decode_ms, times.post_ms, times.total_ms) == (10.0, 11.0, 12.0, 78.0)
    assert (times.ttft_ms, times.tpot_ms) == (55.0, round(11 / 9, 3))
    assert times.tokens_per_second == round(20 / 0.021, 2)
    assert times.cached_tokens == 2


def test_timings_of_a_request_without_tokens() -> None:
    times = timings(Timeline(ManualClock()))
    assert (times.ttft_ms, times.tpot_ms, times.tokens_per_second, times.total_ms) == (None, None, None, 0.0)


def test_guesses_of_all_choices_add_up() -> None:
    timeline = Timeline(ManualClock())
    timeline.learn(EngineFacts(0.0, drafted_tokens=5, accepted_tokens=3), first=True)
    timeline.learn(EngineFacts(0.0, drafted_tokens=2, accepted_tokens=1), first=False)
    times = timings(timeline)
    assert (times.drafted_tokens, times.accepted_tokens) == (7, 4)
