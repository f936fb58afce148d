"""From a Plan to what a simulated engine needs to serve it: rules, step times, words."""

from __future__ import annotations

import msgspec

from servetune.engines import check_fits, check_parallel, check_starts, resolved
from servetune.hardware.device import Node
from servetune.models.shape import NetworkShape
from servetune.perf.roofline.calibration import Calibration
from servetune.perf.roofline.factors import coefficients_for
from servetune.perf.roofline.step import StepLaw, step_law
from servetune.perf.sim.rules import check_context_fits, composes_ahead, routing_of, rules_of
from servetune.perf.sim.sequence import Rules
from servetune.perf.sim.transfer import Handover, handover_of
from servetune.plan import Plan
from servetune.simserver.asks import Serving
from servetune.simserver.live import LiveEngine, WayIn
from servetune.simserver.words import vocabulary_of

__all__ = ["Service", "service_of"]


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """One plan, ready to be served.

    Attributes:
        plan: With the engine's defaults filled in.
        machine: Its name, for the log.
        ranks: Data-parallel ranks, in each of the plan's replicas.
        handover: Of the prompts' caches, where some replicas compute prompts alone.
    """

    plan: Plan
    machine: str
    serving: Serving
    rules: Rules
    law: StepLaw
    way_in: WayIn
    ranks: int
    handover: Handover | None = None

    def engine(self) -> LiveEngine:
        """A new engine with nothing to do."""
        return LiveEngine(
            self.rules,
            self.law,
            replicas=self.plan.replicas,
            ranks=self.ranks,
            way_in=self.way_in,
            routing=routing_of(self.plan),
            longest_tokens=self.serving.max_model_len,
            handover=self.handover,
        )


def service_of(
    plan: Plan,
    shape: NetworkShape,
    node: Node,
    *,
    calibration: Calibration | None = None,
    names: tuple[str, ...] = (),
    tokenizer: str | None = None,
    answer_tokens: int = 256,
    capacity_blocks: int | None = None,
) -> Service:
    """What `perf.sim.simulate` would run, to be driven by requests that come over HTTP.

    Args:
        plan: Fields that are `None` take the engine's defaults.
        shape: The network.
        node: Where it would run.
        calibration: From measured runs of this model on this machine.
        names: By which clients ask for the model; its own where there are none.
        tokenizer: Folder or file; the model folder's own where `None`.
        answer_tokens: Length of a chat answer that nothing limits.
        capacity_blocks: Of the KV cache, instead of what the memory holds.

    Raises:
        PlanError: The plan does not fit the model or the machine.
        InputError: The tokenizer cannot be read.
    """
    check_starts(plan, shape, node.device)
    filled = resolved(plan, shape, node.device)
    check_parallel(filled, shape, node)
    divided = check_fits(filled, shape, node.device, device_limit=node.device_count)
    rules = rules_of(filled, divided, composes_ahead=composes_ahead(filled, node.device))
    if capacity_blocks is not None:
        rules = msgspec.structs.replace(rules, capacity_blocks=capacity_blocks)
    assert filled.max_model_len is not None
    check_context_fits(filled, rules)
    chosen = coefficients_for(node.device, filled.engine)
    if calibration is not None:
        chosen = calibration.coefficients(chosen)
    return Service(
        plan=filled,
        machine=node.label,
        serving=Serving(
            names=names or (plan.model,),
            root=plan.model,
            max_model_len=filled.max_model_len,
            vocabulary=vocabulary_of(plan.model, tokenizer),
            answer_tokens=answer_tokens,
            cached_block_tokens=rules.block_tokens if rules.prefix_caching else None,
        ),
        rules=rules,
        law=step_law(filled, shape, node, chosen),
        way_in=WayIn(request_s=chosen.request_s, prompt_token_s=chosen.prompt_token_s),
        ranks=filled.data_parallel,
        handover=handover_of(filled, node, divided),
    )
