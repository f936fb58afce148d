"""MAX's names for a Plan's fields: `max serve`, 26.x."""

from __future__ import annotations

from servetune.engines.words import Settings, expert_groups, words_of
from servetune.plan.plan import Plan


def _devices(plan: Plan) -> Settings:
    count = plan.tensor_parallel * plan.data_parallel
    if count == 1:
        return {}
    return {"devices": "gpu:" + ",".join(str(number) for number in range(count))}


def _copies(plan: Plan) -> Settings:
    return {"data_parallel_degree": plan.data_parallel, **_devices(plan)}


def _graphs(plan: Plan) -> Settings:
    return {"device_graph_capture": not plan.enforce_eager}


WORDS = words_of(
    "max",
    otherwise={
        "tensor_parallel": _devices,
        "data_parallel": _copies,
        "expert_parallel": expert_groups("ep_size"),
        "enforce_eager": _graphs,
    },
)
