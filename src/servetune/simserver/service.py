"""Simulated service of a Plan: limits of the scheduler, step times, vocabulary."""

from __future__ import annotations

import msgspec

from servetune.engines import check_fits, check_parallel, check_starts, engine, resolved
from servetune.hardware.device import Node
from servetune.models.shape import NetworkShape
from servetune.perf.roofline.calibration import Calibration
from servetune.perf.roofline.factors import plan_coefficients
from servetune.perf.roofline.step import StepLaw, step_law
from servetune.perf.sim.admission import limits_of
from servetune.perf.sim.disaggregation import PrefillPool, prefill_pool_of
from servetune.perf.sim.scheduler_config import (
    batch_in_flight,
    check_context_fits,
    copy_routing_of,
    routing_of,
    scheduler_config_of,
)
from servetune.perf.sim.sequence import SchedulerConfig
from servetune.perf.sim.serving import EngineLayout, RequestOverhead
from servetune.plan import Plan
from servetune.simserver.live_engine import LiveEngine
from servetune.simserver.requests import ServedModel
from servetune.simserver.vocabulary import vocabulary_of


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """One plan, ready to be served.

    Attributes:
        plan: Plan with the engine's defaults filled in.
        machine: Name of the machine, for the log.
        prefill_pool: Replicas that only compute prompts, if there are some.
    """

    plan: Plan
    machine: str
    serving: ServedModel
    config: SchedulerConfig
    law: StepLaw
    overhead: RequestOverhead
    prefill_pool: PrefillPool | None = None

    def engine(self) -> LiveEngine:
        """A new engine with nothing to do."""
        return LiveEngine(
            self.config,
            self.law,
            EngineLayout(
                replicas=self.plan.replicas,
                copy_routing=copy_routing_of(self.plan),
                ranks=self.plan.data_parallel,
                batches=self.plan.pipeline_parallel,
                routing=routing_of(self.plan),
                prefill_pool=self.prefill_pool,
                admission=limits_of(self.plan),
            ),
            overhead=self.overhead,
            longest_tokens=self.serving.max_model_len,
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
    """Service that answers requests over HTTP with the timing of `perf.sim.simulate`.

    Args:
        plan: Fields that are `None` take the engine's defaults.
        shape: The network.
        node: Machine.
        calibration: Calibration by measured runs of this model on this machine.
        names: Names by which clients request the model; its own if empty.
        tokenizer: Folder or file; the model folder's own where `None`.
        answer_tokens: Length of a chat answer that nothing limits.
        capacity_blocks: Blocks of the KV cache, instead of those that the memory holds.

    Raises:
        PlanError: The plan does not fit the model or the machine.
        InputError: The tokenizer cannot be read.
    """
    check_starts(plan, shape, node.device)
    filled = resolved(plan, shape, node.device)
    check_parallel(filled, shape, node)
    divided = check_fits(filled, shape, node.device, device_limit=node.device_count)
    behaviour = engine(filled.engine).behaviour
    config = scheduler_config_of(
        filled, divided, composes_ahead=behaviour.composes_ahead(filled, node.device)
    )
    if capacity_blocks is not None:
        config = msgspec.structs.replace(config, capacity_blocks=capacity_blocks)
    assert filled.max_model_len is not None
    check_context_fits(filled, config)
    chosen = plan_coefficients(node.device, filled)
    if calibration is not None:
        chosen = calibration.coefficients(chosen)
    return Service(
        plan=filled,
        machine=node.label,
        serving=ServedModel(
            names=names or (plan.model,),
            root=plan.model,
            max_model_len=filled.max_model_len,
            vocabulary=vocabulary_of(plan.model, tokenizer),
            answer_tokens=answer_tokens,
            cached_block_tokens=config.block_tokens if config.prefix_caching else None,
            any_model=engine(filled.engine).native_routes.any_model,
        ),
        config=batch_in_flight(config, filled),
        law=step_law(filled, shape, node, chosen),
        overhead=RequestOverhead(
            request_s=chosen.host.request_s, prompt_token_s=chosen.host.prompt_token_s
        ),
        prefill_pool=prefill_pool_of(filled, node, divided),
    )
