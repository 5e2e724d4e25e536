"""A server's state as rows and lines. Pure: text in the order in which it is shown, no terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

State = dict[str, Any]
Row = tuple[str, ...]

QUEUES = ("class", "tenant", "waiting", "tokens", "oldest")
RUNNING = ("request", "tenant", "class", "phase", "prompt", "cached", "made", "age")
TENANTS = ("tenant", "weight", "running", "waiting", "device s", "limits")
TAILS = ("ms", "P50", "P95", "P99", "max")
_TAIL_NAMES = (("queue_ms", "queue"), ("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("total_ms", "end to end"))
_MAP = 48  # characters of the KV map


def headline(state: State, url: str) -> Text:
    words = Text.assemble(
        (state["model"], "bold"), f" at {url}   ", f"up {_age(state['uptime_s'])}   ",
        f"running {state['requests']['running']}, waiting {state['requests']['waiting']}   ",
    )  # fmt: skip
    if state["draining"]:
        words.append("stopping: takes no new work", "bold red")
    return words


def queue_rows(state: State) -> Iterator[tuple[str, Row]]:
    """(key, cells), the longest queue first."""
    for line in sorted(state["queues"], key=lambda line: (-line["requests"], line["class"], line["tenant"])):
        cells = (
            line["class"],
            line["tenant"],
            str(line["requests"]),
            str(line["prompt_tokens"]),
            _age(line["oldest_s"]),
        )
        yield f"{line['class']}/{line['tenant']}", cells


def running_rows(state: State) -> Iterator[tuple[str, Row]]:
    """(request id, cells), in the order of arrival."""
    for run in sorted(state["running"], key=lambda run: (-run["age_s"], run["id"])):
        made = f"{run['generated']}/{run['max_tokens']}"
        cells = (
            _short(run["id"]), run["tenant"], run["class"], run["phase"], str(run["prompt_tokens"]),
            str(run["cached_tokens"]), made, _age(run["age_s"]),
        )  # fmt: skip
        yield run["id"], cells


def tenant_rows(state: State) -> Iterator[tuple[str, Row]]:
    spent = {(each["scope"], each["limit"]): f" ({each['spent']:.2f} spent)" for each in state.get("budgets") or ()}
    for tenant in state["tenants"]:
        name, given = tenant["name"], tenant["limits"].items()
        limits = ", ".join(f"{each} {value:g}{spent.get((name, each), '')}" for each, value in given if value) or "none"
        cells = (
            tenant["name"], f"{tenant['weight']:g}", str(tenant["running"]), str(tenant["waiting"]),
            f"{tenant['device_seconds']:.1f}", limits,
        )  # fmt: skip
        yield tenant["name"], cells


def tail_rows(state: State) -> Iterator[tuple[str, Row]]:
    for key, name in _TAIL_NAMES:
        values = state["tails"].get(key)
        if values is not None:
            yield key, (name, *(_number(values[point]) for point in ("p50", "p95", "p99", "max")))


def kv_map(state: State) -> Text:
    """Who holds the KV blocks, as a bar."""
    kv = state["kv"]
    total = max(kv["total"], 1)
    used = round(_MAP * kv["referenced"] / total)
    cached = min(round(_MAP * kv["cached"] / total), _MAP - used)
    bar = Text("KV  ")
    bar.append("█" * used, "red")
    bar.append("▓" * cached, "yellow")
    bar.append("░" * (_MAP - used - cached), "green")
    bar.append(f"  {kv['referenced']} in use, {kv['cached']} cached, {kv['free']} free of {kv['total']} blocks")
    return bar


def step_line(state: State) -> Text:
    step = state["step"]
    line = Text.assemble(
        "step  ", (f"{step['seconds'] * 1000:.0f} ms", "bold"),
        f"   prefill budget {step['chunk_tokens']} tokens beside {step['decode_rows']} decoding"
        f"   predicted within {step['error_p90']:.0%} (P90), {step['error_p50']:.0%} (P50)",
    )  # fmt: skip
    ttft = state["prediction"].get("ttft")
    if ttft is not None:
        line.append(f"   TTFT actual/predicted P50 {ttft['p50']:.2f}, P90 {ttft['p90']:.2f}")
    return line


def reject_line(state: State) -> Text:
    rejects = sorted(state["rejects"].items(), key=lambda item: -item[1])
    words = ", ".join(f"{reason} {count}" for reason, count in rejects) or "none"
    return Text(f"refused  {words}", "red" if rejects else "")


def _short(name: str) -> str:
    return name if len(name) <= 18 else f"{name[:17]}…"


def _age(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} m" if hours else f"{minutes} m {rest:02d} s"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
