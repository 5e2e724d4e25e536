"""What must hold when many want something at once, in simulations: isolation, fairness, overload, foresight.

    python -m benchmarks.serving.scenarios [NAME ...] [--seconds N]

Every figure stands beside that of first come, first served. The tests run the same scenarios, shorter.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tailrace.config import Config, ControlConfig, EngineConfig
from tailrace.figures.numbers import quantile
from tailrace.figures.slo import Slo
from tailrace.plan.baselines import Classic
from tailrace.plan.clients import Habits
from tailrace.plan.meter import Sample
from tailrace.plan.record import Record
from tailrace.plan.simulator import Outcome, Setup, simulate
from tailrace.plan.steps import NOISE, Machine
from tailrace.plan.summary import summarize
from tailrace.policy import ClassPolicies, ClassPolicy, Policy, TenantPolicy
from tailrace.traces import TraceRow

Shape = Callable[[random.Random], tuple[int, int]]
FCFS = Classic(fcfs=True)
MIX = [(40, 24), (40, 24), (120, 32), (120, 32), (300, 40), (1200, 24)]  # prompt and answer, of the foresight load
WARM = 10.0  # seconds
FOR_EVER = ClassPolicy(queue_deadline=1e6)
PATIENT = ClassPolicies(FOR_EVER, FOR_EVER, FOR_EVER, FOR_EVER)
UNBOUNDED = ControlConfig(max_waiting_requests=1 << 20, max_waiting_tokens=1 << 40)


def chat(rng: random.Random) -> tuple[int, int]:
    return rng.randrange(60, 240), rng.randrange(8, 48)


def document(rng: random.Random) -> tuple[int, int]:
    return rng.randrange(1800, 6001), rng.randrange(16, 64)


def essay(rng: random.Random) -> tuple[int, int]:
    return rng.randrange(200, 900), rng.randrange(20, 60)


def stream(shape: Shape, rate: float, seconds: float, client: str, seed: int) -> list[TraceRow]:
    """Poisson arrivals of one client."""
    rng, now, rows = random.Random(f"{client}/{seed}"), 0.0, []
    while (now := now + rng.expovariate(rate)) < seconds:
        rows.append(TraceRow(now, *shape(rng), client=client))
    return rows


def together(*streams: list[TraceRow]) -> list[TraceRow]:
    return sorted((row for rows in streams for row in rows), key=lambda row: row.arrival or 0.0)


def plane(
    control: ControlConfig | None = None, weights: dict[str, float] | None = None, slots: int = 32, **fields: Any
) -> Setup:
    tenants = tuple(TenantPolicy(name, weight=weight) for name, weight in (weights or {}).items())
    policy = Policy(tenants=tenants, classes=PATIENT) if control is UNBOUNDED else Policy(tenants=tenants)
    config = Config(EngineConfig(max_sequences=slots), control or ControlConfig(), policy=policy)
    return replace(Setup(config, kv_tokens=131_072), **fields)


def capacity(shape: Shape, setup: Setup, count: int = 60) -> float:
    """Requests a second when there is always work."""
    rng = random.Random("capacity")
    outcome = simulate([TraceRow(0.0, *shape(rng)) for _ in range(count)], setup)
    return count / outcome.seconds


def tail(records: Sequence[Record], client: str, metric: str = "ttft", part: float = 0.99) -> float:
    found = sorted(getattr(record, metric) for record in records if record.ok and record.client == client)
    return quantile(found, part)


# --- isolation


def isolation(seconds: float, classic: Classic | None = None) -> dict[str, float]:
    """Chats at 30 % of capacity, with and without documents at 30 %. `long_over`: the worst document's end to end time
    over twice its time alone plus what was ahead of it."""
    made = plane(UNBOUNDED, classic=classic or Classic())
    chats = stream(chat, 0.3 * capacity(chat, made), seconds, "chats", 1)
    documents = stream(document, 0.3 * capacity(document, made, 12), seconds, "documents", 1)
    alone, both = simulate(chats, made), simulate(together(chats, documents), made)
    quiet = simulate([replace(row, arrival=1000.0 * i) for i, row in enumerate(documents)], made)
    lone = [record.e2e or 0.0 for record in quiet.records]
    slow = [record for record in both.records if record.client == "documents"]
    over = max((record.e2e or 0.0) / (2 * lone[i] + _ahead(record, slow, lone)) for i, record in enumerate(slow))
    return {
        "documents": len(documents),
        "alone_p99": tail(alone.records, "chats"),
        "beside_p99": tail(both.records, "chats"),
        "ratio": tail(both.records, "chats") / tail(alone.records, "chats"),
        "long_over": over,
    }


def _ahead(record: Record, slow: Sequence[Record], lone: Sequence[float]) -> float:
    """Lone times of the documents that had come before and had not ended."""
    return sum(
        lone[i]
        for i, other in enumerate(slow)
        if other.arrival < record.arrival and (other.end or 0.0) > record.arrival
    )


# --- fairness


def fairness(
    seconds: float, weights: tuple[float, float] = (1.0, 1.0), classic: Classic | None = None
) -> dict[str, float]:
    """Two backlogged tenants, one sending ten times the requests with longer prompts. Costs in device-seconds; `bound`
    is VTC's: twice the larger of one request's input charge and one full batch's output charge."""
    slots = 4
    made = plane(UNBOUNDED, dict(zip(("greedy", "modest"), weights, strict=True)), slots, classic=classic or Classic())
    rate = 0.7 * capacity(chat, made)
    rows = together(stream(chat, rate, seconds, "modest", 2), stream(essay, 10 * rate, seconds, "greedy", 2))
    outcome = simulate(rows, made)
    first, last = seconds * 0.15, seconds
    shares = list(_shares(outcome.served, first, last, weights))
    greedy, modest = shares[-1]
    costs = Machine().coefficients
    bound = 2 * max(900 * costs[1] + 900 * 450 * costs[4], slots * 60 * (costs[0] + costs[2] + costs[3] * 960))
    return {
        "ratio": greedy / modest,  # of cost over weight
        "apart": max(abs(one - other) for one, other in shares),
        "bound": bound,
        "busy": _busy(outcome, first, last),
        "tail_ratio": tail(outcome.records, "modest") / tail(outcome.records, "greedy"),
    }


def _shares(
    served: Sequence[Sample], first: float, last: float, weights: tuple[float, float]
) -> Iterator[tuple[float, float]]:
    """What each got since `first`, over its weight."""
    looks = [sample for at, sample in served if first <= at <= last]
    for sample in looks:
        one, other = (
            (sample.get(name, 0.0) - looks[0].get(name, 0.0)) / weight
            for name, weight in zip(("greedy", "modest"), weights, strict=True)
        )
        yield one, other


def _busy(outcome: Outcome, first: float, last: float) -> float:
    """Device-seconds served over the time between."""
    looks = [(at, sum(sample.values())) for at, sample in outcome.served if first <= at <= last]
    return (looks[-1][1] - looks[0][1]) / (looks[-1][0] - looks[0][0])


def polite(seconds: float, classic: Classic | None = None, part: float = 0.1, shape: Shape = chat) -> dict[str, float]:
    """A tenant with `part` of capacity beside one that asks for 1.5 times what there is. Tails of what comes after the
    first ten seconds, in which the other one uses up what everyone begins with; one request comes at once, since places
    are kept only for who was here lately. `pace`: tokens that the machine makes
    in a second beside what it makes for the greedy one alone, whose steps are as long as they like."""
    made = plane(classic=classic or Classic(), weights={"polite": 1.0, "greedy": 1.0})
    own = stream(shape, part * capacity(shape, made), seconds, "polite", 3)
    own.insert(0, replace(own[0], arrival=0.0))
    greedy = stream(essay, 1.5 * capacity(chat, made), seconds, "greedy", 3)
    alone, both, lone = simulate(own, made), simulate(together(own, greedy), made), simulate(greedy, made)
    answered = [record for record in both.records if record.client == "polite" and record.ok]
    before, after = (
        tail([record for record in outcome.records if record.arrival > WARM], "polite") for outcome in (alone, both)
    )
    return {
        "alone_p99": before,
        "beside_p99": after,
        "ratio": after / before,
        "answered": len(answered) / len(own),
        "pace": _pace(both) / _pace(lone),
        "gap_p99": tail(both.records, "greedy", "worst_gap"),
        "lone_gap_p99": tail(lone.records, "greedy", "worst_gap"),
    }


def _pace(outcome: Outcome) -> float:
    """Tokens in a second of work."""
    return (outcome.stats.prefill_tokens + outcome.stats.decode_tokens) / outcome.steps.busy


# --- overload


def overload(seconds: float, factor: float = 3.0, tries: int = 1, classic: Classic | None = None) -> dict[str, float]:
    """Several tenants together ask for `factor` times what there is. Goodput at TTFT under 5 s, against its peak."""
    slo, control = Slo(ttft=5.0), ControlConfig(max_waiting_requests=16)
    made = plane(control, dict.fromkeys("abcd", 1.0), classic=classic or Classic(), habits=Habits(tries=tries))
    promised = replace(made.config.policy, classes=ClassPolicies(interactive=ClassPolicy(ttft=5.0)))
    made = replace(made, config=replace(made.config, policy=promised))
    most = capacity(chat, plane(UNBOUNDED))
    peak = max(_goodput(made, load * most, seconds / 2, slo)[0] for load in (0.7, 0.85, 1.0))
    good, outcome = _goodput(made, factor * most, seconds, slo)
    found = summarize(outcome, slo)
    refusals = found["refusals"]
    by_tenant = [group["answered"] for group in found["tenants"].values()]
    return {
        "goodput": good,
        "peak": peak,
        "part": good / peak,
        "refused": sum(refusals["by_reason"].values()),
        "without_retry_after": refusals["without_retry_after"],
        "least_answered": min(by_tenant) / max(by_tenant),
        "queue_max": max(record.queue or 0.0 for record in outcome.records if record.ok),
    }


def _goodput(made: Setup, rate: float, seconds: float, slo: Slo) -> tuple[float, Outcome]:
    outcome = simulate(together(*(stream(chat, rate / 4, seconds, name, 4) for name in "abcd")), made)
    return sum(slo.met(record) for record in outcome.records) / seconds, outcome


def comeback(seconds: float, classic: Classic | None = None) -> dict[str, float]:
    """Bursts whose mean load is 0.7: who was refused and obeys its Retry-After is let in at the next try."""
    made = plane(ControlConfig(max_waiting_requests=8), classic=classic or Classic(), slots=8, habits=Habits(tries=8))
    most = capacity(chat, plane(UNBOUNDED, slots=8))
    rng, now, rows = random.Random("bursts"), 0.0, []
    while now < seconds:
        count = rng.randrange(16, 33)
        rows += [TraceRow(now + rng.random(), *chat(rng)) for _ in range(count)]
        now += count / (0.7 * most)
    outcome = simulate(together(rows), made)
    again = [record for record in outcome.records if record.refusals]
    second = sum(record.ok and len(record.refusals) == 1 for record in again)
    return {
        "refused": len(again),
        "next_try": second / len(again),
        "answered": sum(r.ok for r in outcome.records) / len(rows),
    }


def crowd(seconds: float, classic: Classic | None = None) -> dict[str, float]:
    """The same where a first token is promised within 5 s: every half minute four times of what there is, for six
    seconds, which is a mean load of 0.8. Refused clients come back twice at the most."""
    promised = Policy(classes=replace(ClassPolicies(), interactive=ClassPolicy(ttft=5.0, queue_deadline=60.0)))
    made = plane(classic=classic or Classic(), habits=Habits(tries=3))
    most = capacity(chat, plane(UNBOUNDED))
    made = replace(made, config=replace(made.config, policy=promised))
    rng, rows = random.Random("crowd"), []
    for begin in range(0, round(seconds), 30):
        rows += [TraceRow(begin + 6.0 * rng.random(), *chat(rng)) for _ in range(round(0.8 * 30 * most))]
    outcome = simulate(together(rows), made)
    again = [record for record in outcome.records if record.refusals]
    return {
        "refused": len(again),
        "next_try": sum(record.ok and len(record.refusals) == 1 for record in again) / max(len(again), 1),
        "answered": sum(record.ok for record in outcome.records) / len(rows),
        "in_time": sum(record.ok and (record.ttft or 0.0) <= 5.0 for record in outcome.records) / len(rows),
    }


# --- foresight


def foresight(
    seconds: float, load: float = 0.6, noise: float = NOISE, classic: Classic | None = None, lasting: float = 0.0
) -> dict[str, float]:
    """Predicted against actual first token, |actual - predicted| / actual, of a mix at this part of capacity, behind
    the quarter of the requests from which the errors are learned. `noise`: of step times, which stays about the same
    for `lasting` seconds of steps."""
    made = plane(classic=classic or Classic(), machine=Machine(noise=noise, lasting=lasting))
    rate = load * len(MIX) / sum(1 / capacity(lambda _, size=size: size, made, 6) for size in MIX)
    outcome = simulate(stream(lambda rng: rng.choice(MIX), rate, seconds, "mix", 5), made)
    known = [record for record in outcome.records if record.ok and record.predicted_ttft is not None]
    later = [(record.ttft or 0.0, record.predicted_ttft or 0.0) for record in known[len(known) // 4 :]]
    errors = sorted(abs(actual - predicted) / actual for actual, predicted in later)
    return {
        "requests": len(later),
        "p50": quantile(errors, 0.5),
        "p90": quantile(errors, 0.9),
        "bias": quantile(sorted((predicted - actual) / actual for actual, predicted in later), 0.5),
    }


def noises(seconds: float, classic: Classic | None = None) -> dict[str, float]:
    """What of the error is the machine's: the same by the noise of step times."""
    found = {noise: foresight(seconds, 0.6, noise, classic) for noise in (0.0, NOISE, 0.2, 0.4)}
    return {f"{noise}_{part}": error[part] for noise, error in found.items() for part in ("p50", "p90")}


SCENARIOS: dict[str, Callable[..., dict[str, float]]] = {
    "isolation": isolation, "fairness": fairness, "polite": polite, "overload": overload, "comeback": comeback,
    "crowd": crowd, "foresight": foresight, "noises": noises,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(SCENARIOS), help=" ".join(SCENARIOS), metavar="NAME")
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args()
    for name in options.names:
        for label, classic in (("fair", Classic()), ("first come", FCFS)):
            _print(f"{name}, {label}", SCENARIOS[name](options.seconds, classic=classic))


def _print(name: str, found: dict[str, float]) -> None:
    print(f"{name:42}" + "  ".join(f"{key} {value:.3f}" for key, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
