"""The loop: exactly one end per choice, aborts in every phase, faults that stay where they belong."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from threading import Event, Thread

import pytest

from tailrace.clock import SystemClock
from tailrace.engine.fake_runner import FakeRunner
from tailrace.engine.loop import Delivery, EngineLoop
from tailrace.engine.sequence import Group
from tailrace.engine.step import StepPlan, StepResult
from tailrace.errors import InternalError
from tailrace.types import FinishReason, StopConditions, TokenEvent
from tests.engine.gate import Gate
from tests.engine.support import VOCAB, Rig, by_definition, parts, prompt, request, seeded, tokenizer

FREE = 64


def free(rig: Rig) -> bool:
    """Nothing is held: all slots, and every block free or cached."""
    rig.scheduler.kv.check([])
    return rig.scheduler.kv.available == rig.scheduler.kv.pool.total and rig.scheduler.free_slots == 32


def test_texts_join_to_the_decoded_tokens() -> None:
    rig = Rig().run(request(max_tokens=50))
    choice = rig.choice()
    assert choice.text == tokenizer().decode(choice.tokens, skip_special=True)
    assert choice.finish is FinishReason.LENGTH


def test_one_delivery_a_step_for_all_requests() -> None:
    rig = Rig()
    rig.submit(*[request(f"r{i}", prompt(8, i), 3) for i in range(5)])
    assert not rig.deliveries  # nothing can end here: it goes out while the next step is computed
    rig.step()
    assert len(rig.deliveries) == 1
    rig.step()
    assert len(rig.deliveries) == 3  # the last tokens end their choices, which cannot wait
    for delivery in rig.deliveries:
        assert {name: len(events) for name, events in delivery.items()} == {f"r{i}": 1 for i in range(5)}
    assert rig.loop.live == 0


def test_texts_and_deliveries_that_end_nothing_happen_between_forward_and_sample() -> None:
    seen: list[str] = []

    class Watched(FakeRunner):
        def forward(self, plan: StepPlan) -> None:
            seen.append("forward")
            super().forward(plan)

        def sample(self, plan: StepPlan) -> StepResult:
            seen.append("sample")
            return super().sample(plan)

    rig = Rig(runner=Watched(FREE, vocab=VOCAB))
    take, rig.loop._deliver = rig.loop._deliver, lambda delivery: (seen.append("deliver"), take(delivery))[1]
    rig.run(request(max_tokens=4), most=10)
    step = ["forward", "deliver", "sample"]
    assert seen == ["forward", "sample", *step, *step, *step, "deliver"]


def test_an_abort_finds_the_text_of_the_step_before() -> None:
    rig = Rig()
    rig.submit(request(max_tokens=50))
    rig.step()
    rig.abort("r")
    assert len(rig.tokens()) == 2
    assert rig.choice().text == tokenizer().decode(rig.tokens(), skip_special=True)
    assert rig.choice().finish is FinishReason.ABORT


def test_a_stop_string_ends_a_choice_in_commit_and_frees_it_in_the_same_step() -> None:
    plain = Rig().run(request(max_tokens=60)).choice().text
    wanted = plain[20:24]
    rig = Rig().run(request(stop=StopConditions(60, strings=(wanted,), ignore_eos=True)))
    choice = rig.choice()
    assert choice.finish is FinishReason.STOP
    assert choice.ends[0].stop_reason == wanted
    assert choice.text == plain[: plain.index(wanted)]
    assert len(choice.tokens) < 60
    assert free(rig)


def test_a_stop_token_at_the_last_allowed_place_is_a_stop() -> None:
    tokens = Rig().run(request(max_tokens=6)).tokens()
    last = tokens.index(tokens[5]) + 1
    rig = Rig().run(request(stop=StopConditions(last, token_ids=(tokens[5],), ignore_eos=True)))
    assert rig.choice().finish is FinishReason.STOP
    assert rig.choice().ends[0].stop_reason == tokens[5]


def test_facts_say_when_each_phase_ended() -> None:
    rig = Rig(chunk=64)
    rig.run(request(tokens=150, max_tokens=3))
    facts = rig.choice().ends[0].facts
    assert facts is not None
    assert (facts.started, facts.first_token, facts.finished) == (1.0, 3.0, 5.0)
    assert (facts.cached_tokens, facts.computed_prompt_tokens, facts.preemptions) == (0, 150, 0)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("phase", ["waiting", "prefill", "decode"])
def test_an_abort_frees_everything_within_one_step(phase: str, n: int) -> None:
    rig = Rig(blocks=8, chunk=16)
    if phase == "waiting":
        rig.submit(request("blocker", 400, 100))
    rig.submit(request("r", prompt(40 if phase == "decode" else 200, 1), 50, n=n))
    while phase == "decode" and not rig.tokens():
        rig.step()
    states = {"waiting": (0, 1), "prefill": (1, 0), "decode": (n, 0)}
    ours = [s for s in rig.scheduler.running if s.group.request.id == "r"]
    assert (len(ours), int(rig.scheduler.waiting_count > 0)) == states[phase]
    rig.abort("r")
    assert [rig.choice("r", i).finish for i in range(n)] == [FinishReason.ABORT] * n
    assert not [s for s in rig.scheduler.running if s.group.request.id == "r"]
    assert rig.loop.stats.worst_cancel_seconds <= 1.0
    if phase == "waiting":
        rig.run()
        assert rig.tokens("blocker") == by_definition(request(tokens=400, max_tokens=100))
    assert free(rig)


def test_aborting_unknown_or_finished_requests_changes_nothing() -> None:
    rig = Rig().run(request())
    rig.abort("r")
    rig.abort("never seen")
    assert len(rig.choice().ends) == 1
    assert rig.loop.stats.aborts == 0


def test_500_random_requests_with_aborts_leak_nothing() -> None:
    soak(500)


def soak(requests: int, seed: int = 0) -> None:
    """Random prompts (many shared), lengths, choices and abort times on a cache that is too small for all."""
    rng = random.Random(seed)
    rig = Rig(blocks=24, slots=32, chunk=96, max_preemptions=4)
    wanted, aborted, live = {}, set(), []
    for number in range(requests):
        length = rng.choice([1, 5, 63, 64, 65, 100, 200])
        one = request(
            f"r{number}", prompt(length, rng.randrange(6)), rng.randrange(1, 60), sampling=seeded(number),
            n=rng.choice([1, 1, 1, 2, 4]),
        )  # fmt: skip
        wanted[one.id] = one
        live.append(one.id)
        rig.submit(one)
        if rng.random() < 0.3:
            victim = live.pop(rng.randrange(len(live)))
            aborted.add(victim)
            rig.abort(victim)
        for _ in range(rng.randrange(6)):
            rig.step()
        while rig.scheduler.waiting_count > 40:
            rig.step()
    rig.run()
    for name, one in wanted.items():
        for index in range(one.n):
            choice, expected = rig.choice(name, index), by_definition(one, index)
            assert len(choice.ends) == 1
            assert choice.tokens == expected[: len(choice.tokens)]
            if name not in aborted:
                assert choice.tokens == expected
    assert rig.loop.stats.preemptions > 0
    assert free(rig)
    rig.scheduler.kv.clear_cache()
    assert rig.scheduler.kv.pool.free == 24
    assert rig.loop.live == 0


class _Broken(FakeRunner):
    """Fails the steps it is told to, or gives no number for one request."""

    def __init__(self) -> None:
        super().__init__(FREE, vocab=VOCAB)
        self.fail_at: set[int] = set()
        self.nan_for = ""

    def forward(self, plan: StepPlan) -> None:
        super().forward(plan)
        if self.steps in self.fail_at:
            raise RuntimeError("the executor broke")

    def sample(self, plan: StepPlan) -> StepResult:
        result = super().sample(plan)
        for place, sequence in enumerate(plan.samplers):
            if sequence.group.request.id == self.nan_for:
                result.tokens[place] = -1
        return result


def test_no_number_ends_that_request_only_and_its_blocks_are_not_trusted() -> None:
    runner = _Broken()
    rig = Rig(runner=runner)
    rig.submit(request("bad", prompt(200, 1), 20, n=2), request("good", prompt(200, 2), 20))
    runner.nan_for = "bad"
    rig.run()
    for index in range(2):
        end = rig.choice("bad", index).ends[0]
        assert end.finish is FinishReason.ERROR
        assert isinstance(end.error, InternalError)
    assert rig.tokens("good") == by_definition(request(tokens=prompt(200, 2), max_tokens=20))
    assert rig.scheduler.kv.match(prompt(200, 1), b"") == 0
    assert rig.scheduler.kv.match(prompt(200, 2), b"") == 192
    assert free(rig)


def test_a_failing_step_ends_its_sequences_and_the_loop_lives_on() -> None:
    runner = _Broken()
    rig = Rig(runner=runner)
    runner.fail_at = {2}
    rig.submit(request("a", 8, 20), request("b", 100, 20))
    rig.step()
    assert [rig.choice(name).finish for name in "ab"] == [FinishReason.ERROR] * 2
    assert free(rig)
    rig.run(request("c", 30, 20))
    assert rig.tokens("c") == by_definition(request(tokens=30, max_tokens=20))
    assert rig.loop.stats.failed_steps == 1


def test_a_failing_step_leaves_waiting_requests_alone() -> None:
    runner = _Broken()
    rig = Rig(runner=runner, slots=1)
    runner.fail_at = {1}
    rig.submit(request("a"), request("b"))
    assert rig.choice("a").finish is FinishReason.ERROR
    rig.run()
    assert rig.tokens("b") == by_definition(request())


@pytest.mark.parametrize("may_end", [True, False])
def test_broken_text_ends_that_request_only(monkeypatch: pytest.MonkeyPatch, may_end: bool) -> None:
    rig = Rig()
    rig.submit(request("bad", 8, 20, n=2), request("good", prompt(9, 1), 20))
    answer = rig.loop._answers["bad"]

    def broken(token: int) -> None:
        raise ValueError("no such token")

    ends = staticmethod(lambda token: may_end)
    stream = type("Stream", (), {"plain": staticmethod(broken), "push": staticmethod(broken), "may_end": ends})
    monkeypatch.setattr(answer, "streams", [stream] * 2)
    rig.run()
    assert [rig.choice("bad", index).finish for index in range(2)] == [FinishReason.ERROR] * 2
    assert rig.tokens("good") == by_definition(request(tokens=prompt(9, 1), max_tokens=20))
    assert free(rig)


def test_a_broken_plan_ends_everyone_and_starts_over(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.submit(request("a", 8, 20), request("b", 100, 20))
    with monkeypatch.context() as patch:
        patch.setattr(rig.scheduler, "_begun", lambda *anything: 1 / 0)
        rig.step()
    assert [rig.choice(name).finish for name in "ab"] == [FinishReason.ERROR] * 2
    assert free(rig)
    rig.run(request("c"))
    assert rig.tokens("c") == by_definition(request())


def test_repeated_failures_are_unhealthy_until_a_step_succeeds() -> None:
    runner = _Broken()
    delivered: list[Delivery] = []
    ended = Event()

    def take(delivery: Delivery) -> None:
        delivered.append(delivery)
        if any(event.finish for events in delivery.values() for event in events):
            ended.set()

    engine = parts(runner=runner)
    loop = EngineLoop(
        engine.scheduler, runner, tokenizer=tokenizer(), cost=engine.cost, clock=SystemClock(), deliver=take
    )
    assert not loop.health().ok
    loop.start()
    runner.fail_at = {1, 2, 3}
    for number in range(4):
        ended.clear()
        loop.submit(Group(request(f"r{number}", max_tokens=1), number, 0))
        assert ended.wait(60)
        assert loop.health().ok == (number != 2)
    loop.stop()
    assert loop.health().reason == "the engine thread is not running"
    assert loop.stats.failed_steps == 3


def test_stopping_ends_requests_with_abort() -> None:
    events: list[TokenEvent] = []
    engine = parts()
    loop = EngineLoop(
        engine.scheduler, engine.runner, tokenizer=tokenizer(), cost=engine.cost, clock=SystemClock(),
        deliver=lambda delivery: events.extend(event for part in delivery.values() for event in part),
    )  # fmt: skip
    gate = Gate()
    gate.hold(loop)
    loop.start()
    with gate.closed():
        loop.submit(Group(request(max_tokens=1000), 0, 0))
        stopping = Thread(target=loop.stop)
        stopping.start()
        while not loop._stopping:
            time.sleep(0.001)
    stopping.join()
    assert [event.finish for event in events if event.finish] == [FinishReason.ABORT]
    assert loop.live == 0


def test_max_tokens_zero_ends_without_a_step() -> None:
    rig = Rig().run(request(max_tokens=0, n=2))
    assert [rig.choice("r", i).finish for i in range(2)] == [FinishReason.LENGTH] * 2
    assert rig.runner.steps == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("chunk", [16, 512])
@pytest.mark.parametrize("max_tokens", [0, 3])
def test_prompt_logprobs_do_not_depend_on_chunks_or_cache(chunk: int, max_tokens: int) -> None:
    one = request(tokens=150, max_tokens=max_tokens, prompt_logprobs=2)
    rig = Rig(chunk=chunk, score_rows=40).run(request("warm", 150, 1))
    rig.run(one)
    scores = rig.events["r"][0].prompt_logprobs
    assert scores is not None
    assert [score.token_id for score in scores] == one.prompt.tolist()
    assert scores[0].logprob is None
    expected = Rig(prefix_cache=False).run(one).events["r"][0].prompt_logprobs
    assert expected is not None
    assert [(s.logprob, s.top) for s in scores] == [(s.logprob, s.top) for s in expected]
    assert all(len(score.top) == 2 for score in scores[1:])
    assert rig.events["r"][0].cached_tokens == 0
    assert rig.tokens() == by_definition(one)


def test_prompt_logprobs_with_choices_and_preemption() -> None:
    many = [request(f"r{i}", prompt(100, i), 60, n=2, prompt_logprobs=0, sampling=seeded(i)) for i in range(3)]
    rig = Rig(blocks=9, chunk=64, max_preemptions=50).run(*many)
    assert rig.loop.stats.preemptions > 0
    for one in many:
        scores = [event.prompt_logprobs for event in rig.events[one.id] if event.prompt_logprobs]
        assert len(scores) == 1
        assert [score.token_id for score in scores[0]] == one.prompt.tolist()
        assert [rig.tokens(one.id, i) for i in range(2)] == [by_definition(one, i) for i in range(2)]


def test_logprobs_come_with_each_token() -> None:
    sampling = replace(seeded(), logprobs=3)
    rig = Rig().run(request("with", max_tokens=5, sampling=sampling), request("without", max_tokens=5))
    entries = [entry for event in rig.events["with"] for entry in event.logprobs]
    assert [entry.token_id for entry in entries] == rig.tokens("with")
    assert all(len(entry.top) == 3 for entry in entries)
    assert all(event.logprobs == () for event in rig.events["without"])
