"""Who gives way to whom inside the engine: by priority before the first token, background also while it decodes."""

from __future__ import annotations

from tailrace.types import FinishReason
from tests.engine.support import Rig, by_definition, prompt, request
from tests.engine.test_scheduler import Bench, shape


def names(bench: Bench) -> list[str]:
    return [sequence.group.request.id for sequence in bench.scheduler.running]


def test_a_higher_priority_takes_the_slot_of_one_without_a_token() -> None:
    bench = Bench(slots=1, chunk=100)
    low = bench.submit(request("low", prompt(300, 1), 5, priority=-1))
    bench.step()
    bench.submit(request("high", prompt(50, 2), 1))
    plan = bench.plan()
    assert shape(plan) == [("high", 0, 50)]
    assert [(p.request_id, p.lost_tokens, p.reason) for p in plan.preemptions] == [("low", 0, "priority")]
    bench.commit(plan)
    assert shape(bench.plan()) == [("low", 100, 100)]  # its blocks were kept
    assert low.recomputed == 0


def test_one_that_decodes_keeps_its_slot_unless_it_is_background() -> None:
    for background in (False, True):
        bench = Bench(slots=1)
        bench.submit(request("low", prompt(30, 1), 9, priority=-1, background=background))
        bench.step()
        bench.submit(request("high", prompt(50, 2), 1))
        assert bench.step()[0][0] == ("high" if background else "low")


def test_what_was_parked_often_enough_stays() -> None:
    bench = Bench(slots=1, max_preemptions=2)
    bench.submit(request("low", prompt(30, 1), 99, priority=-1, background=True))
    bench.step()
    for number in range(2):
        bench.submit(request(f"high{number}", prompt(50, 2), 1))
        assert bench.step()[0][0] == f"high{number}"
        bench.step()
    bench.submit(request("high", prompt(50, 2), 1))
    assert bench.step()[0][0] == "low"


def test_parked_blocks_go_before_anyone_who_runs_is_preempted() -> None:
    bench = Bench(blocks=6, slots=1)
    low = bench.submit(request("low", prompt(128, 1), 60, priority=-1, background=True))
    bench.step()
    bench.submit(request("high", prompt(180, 2), 100))
    plan = bench.plan()
    assert [p.reason for p in plan.preemptions] == ["priority"]
    bench.commit(plan)
    reasons = []
    for _ in range(99):
        plan = bench.plan()
        reasons += [(p.request_id, p.reason) for p in plan.preemptions]
        bench.commit(plan)
    assert reasons == [("low", "kv_full_parked")]
    bench.kv.check(bench.scheduler.live_tables())
    while bench.scheduler.has_work:
        bench.step()
    assert low.sequences[0].finish is FinishReason.LENGTH
    bench.kv.check([])


def test_background_blocks_are_taken_for_a_prompt_that_does_not_fit() -> None:
    bench = Bench(blocks=6, slots=4)
    bench.submit(request("low", prompt(200, 1), 60, priority=-1, background=True))
    bench.step()
    bench.submit(request("high", prompt(250, 2), 5))
    plan = bench.plan()
    assert shape(plan)[0] == ("high", 0, 250)
    assert [(p.request_id, p.reason) for p in plan.preemptions] == [("low", "kv_priority")]


def test_background_rows_sit_out_steps_with_prompts_but_not_for_ever() -> None:
    bench = Bench(chunk=10, max_yields=3)
    bench.submit(request("low", prompt(30, 1), 99, priority=-1, background=True))
    for _ in range(3):
        bench.step()
    bench.submit(request("high", prompt(95, 2), 9))
    bench.step()  # high was not there when it was planned
    rows = [[name for name, _, _ in bench.step()] for _ in range(8)]
    assert rows == [["high"]] * 3 + [["low", "high"]] + [["high"]] * 3 + [["low", "high"]]
    bench.step()
    assert sorted(name for name, _, _ in bench.step()) == ["high", "low"]


def test_background_prompts_get_what_others_leave_of_a_step() -> None:
    bench = Bench(chunk=100)
    bench.submit(request("low", prompt(500, 1), 9, priority=-1, background=True))
    bench.submit(request("high", prompt(160, 2), 9))
    assert bench.step() == [("high", 0, 100)]
    assert bench.step() == [("high", 100, 60), ("low", 0, 40)]


def test_a_parked_request_can_be_ended() -> None:
    bench = Bench(slots=1)
    low = bench.submit(request("low", prompt(200, 1), 60, priority=-1, background=True))
    bench.step()
    bench.submit(request("high", prompt(50, 2), 5))
    bench.step()
    bench.scheduler.end(low, FinishReason.ABORT, 0.0)
    bench.kv.check(bench.scheduler.live_tables())
    assert names(bench) == ["high"]
    while bench.scheduler.has_work:
        bench.step()
    bench.kv.check([])


def test_tokens_are_the_same_after_being_parked() -> None:
    rig = Rig(slots=2, chunk=40, blocks=12)
    low = request("low", prompt(150, 1), 40, n=2, priority=-1, background=True)
    rig.submit(low)
    for _ in range(8):
        rig.step()
    others = [request(f"h{i}", prompt(100, 2 + i), 6) for i in range(3)]
    rig.submit(*others)
    rig.run()
    for one in (low, *others):
        for index in range(one.n):
            assert rig.tokens(one.id, index) == by_definition(one, index)
    assert rig.choice("low", 1).ends[0].facts.preemptions > 0  # type: ignore[union-attr]
