"""What an operator changes while the server runs: ends a request, gives a tenant another weight or other limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tailrace.control.pipeline import Pipeline
from tailrace.errors import ConfigError, Domain, InvalidRequest, NotFound, Unavailable
from tailrace.policy import Quota, TenantPolicy, read

CHANGEABLE = ("weight", "priority", "mode", "max_waiting_requests", "max_waiting_tokens", "limits")
_PROMPT = re.compile(r"(?<=[0-9a-f]{32})-\d+$")  # which of several prompts of a request


def cancel(pipeline: Pipeline, request_id: str) -> int:
    """End a request wherever it is; its client gets an error. Returns how many of its prompts were ended.

    Raises NotFound when none of that name waits or runs."""
    runs = [*pipeline.waiting_runs(), *pipeline.runs()]
    found = [run for run in runs if request_id in (run.id, _PROMPT.sub("", run.id))]
    if not found:
        raise NotFound(f"No request {request_id} waits or runs", code="request_not_found")
    for run in found:
        run.fail(_ended_by_operator())
    return len(found)


def _ended_by_operator() -> Unavailable:
    return Unavailable("The request was ended by an operator", code="cancelled_by_operator", domain=Domain.EXECUTION)


def change_tenant(pipeline: Pipeline, name: str, wanted: Mapping[str, Any]) -> TenantPolicy:
    """From the next decision on, also about those who wait for their limits. Limits that are not named stay.

    Raises NotFound, InvalidRequest."""
    known = {tenant.name: tenant for tenant in pipeline.tenants}
    if name not in known:
        raise NotFound(f"There is no tenant {name}; known: {', '.join(known)}", code="tenant_not_found")
    odd = [field for field in wanted if field not in CHANGEABLE]
    if odd or not wanted:
        raise InvalidRequest(
            f"{', '.join(odd) or 'nothing'} cannot be changed; what can: {', '.join(CHANGEABLE)}",
            param=(odd or [""])[0],
        )
    tenant = known[name]
    try:
        plain = {field: value for field, value in wanted.items() if field != "limits"}
        changed = read(TenantPolicy, plain, "", "request", tenant)
        limits = read(Quota, wanted.get("limits", {}), "limits", "request", tenant.limits)
    except ConfigError as error:
        raise InvalidRequest(error.message, param=error.param) from error
    values = {field: getattr(changed, field) for field in CHANGEABLE}
    pipeline.tenants.change(name, **{**values, "limits": limits})
    pipeline.limits.changed(name)
    pipeline.release()
    return pipeline.tenants[name]
