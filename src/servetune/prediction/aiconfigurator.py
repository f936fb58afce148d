"""Estimates by NVIDIA's aiconfigurator, an independent predictor of the same runs.

It predicts from operator tables that were measured per GPU and engine, so it has no estimate
where a table lacks the GPU, the kind of network or the precision; nothing is filled in. No
factor, interval or calibration of servetune changes its numbers. Arguments of its call
(version 0.12):

| run | argument |
|---|---|
| device, engine | system, backend; its current table, not the measured engine's version |
| lengths | `isl`, `osl`: means, as it takes constants |
| concurrency | `batch_size` of one copy's rank; replicas are multiplied afterwards |
| weights, cache | quantisation modes; it reads those of a published checkpoint itself |
| parallelism | `tp`, `pp`, attention `dp`, and of experts `moe_tp` or `moe_ep` |

It estimates a steady state, without the burst at the start of a run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import math
import re
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from servetune.bundled import bundled
from servetune.engines import facts_by_table_name, step_law_facts
from servetune.errors import InputError, PlanError
from servetune.json_value import JsonObject
from servetune.models import ExpertFeedForward, shape_from_config
from servetune.models.quantization import (
    Quantization,
    canonical_cache_dtype,
    effective_quantization,
)
from servetune.perf.roofline import PlannedRun, moments_of
from servetune.prediction.rows import Cell, rounded

PACKAGE = "aiconfigurator"

_WORDS = bundled("prediction", "data/aiconfigurator.toml")
#: Device of the catalogue to the system that aiconfigurator has operator tables for.
SYSTEMS: Mapping[str, str] = _WORDS["systems"]

#: Paths of its tables on this machine, which are cut out of its messages.
_PATH = re.compile(r"(?: (?:at|from|in))? /[^\s,;]+")


class EstimateCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of `aiconfigurator.cli.api.cli_estimate`, by the names of its arguments.

    Attributes:
        copies: Replicas, by which its rates are multiplied; no argument of the call.
    """

    system_name: str
    backend_name: str
    isl: int
    osl: int
    batch_size: int
    tp_size: int
    pp_size: int
    attention_dp_size: int
    moe_tp_size: int | None
    moe_ep_size: int | None
    gemm_quant_mode: str | None
    moe_quant_mode: str | None
    kvcache_quant_mode: str | None
    copies: int = msgspec.field(default=1)

    def arguments(self) -> dict[str, str | int | None]:
        """Arguments by name."""
        named = msgspec.structs.asdict(self)
        del named["copies"]
        return named


class AiconfiguratorEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """Estimate by aiconfigurator of one run.

    Attributes:
        concurrency: Users of the estimate: batches of equal size on every rank.
        predictor: Name and version of aiconfigurator, and the table it read.
        warning: Warning of aiconfigurator; empty if none.
    """

    concurrency: int
    ttft_ms: float
    tpot_ms: float
    e2e_ms: float
    output_tokens_per_s: float
    predictor: str
    warning: str = ""


def require_installed() -> None:
    """Raise `InputError` with the command that installs aiconfigurator where it is not."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise InputError(
            f"--estimator {PACKAGE} needs the package {PACKAGE}, which is not installed",
            hint=f"pip install 'servetune[{PACKAGE}]'",
        )


def call_for(run: PlannedRun, published: str = "") -> EstimateCall:
    """Call of aiconfigurator for a run.

    Args:
        run: Run to estimate.
        published: Storage of weights in the configuration that it reads. Where the run has the
            same, no modes are passed: aiconfigurator reads more of them than this table has.

    Raises:
        PlanError: aiconfigurator has no table for the device, the engine or the precision.
    """
    plan, moments = run.plan, moments_of(run.lengths)
    system = _word(SYSTEMS, run.node.device.name, "table of the GPU")
    engine = run.engine or plan.engine
    backends = {facts.name: facts.name for facts in facts_by_table_name().values()}
    name = step_law_facts(engine).name
    backend = _word(backends, name if name in backends else engine, "table of the engine")
    gemm = moe = None
    experts = any(isinstance(layer.feed_forward, ExpertFeedForward) for layer in run.shape.layers)
    stored = effective_quantization(run.shape.quantization, plan.quantization)
    if stored.name != published:
        dense = ("linear",) if experts else ("linear", "feed_forward")
        gemm = _word(_WORDS["matrices"], _scheme(stored, dense), "mode for weights in")
        if experts:
            scheme = _scheme(stored, ("linear", "feed_forward", "experts"))
            moe = _word(_WORDS["experts"], scheme, "mode for experts in")
    cache = None
    if plan.kv_cache_dtype not in (None, "auto"):
        dtype = canonical_cache_dtype(plan.kv_cache_dtype, model_dtype=run.shape.dtype)
        cache = _word(_WORDS["caches"], dtype, "mode for a cache in")
    ranks = plan.replicas * plan.data_parallel
    group = plan.tensor_parallel * plan.data_parallel
    return EstimateCall(
        system_name=system,
        backend_name=backend,
        isl=max(1, round(moments.input_tokens)),
        osl=max(1, round(moments.output_tokens)),
        batch_size=max(1, math.ceil(run.concurrency / ranks)),
        tp_size=plan.tensor_parallel,
        pp_size=plan.pipeline_parallel,
        attention_dp_size=plan.data_parallel,
        moe_tp_size=(1 if plan.expert_parallel else group) if experts else None,
        moe_ep_size=(group if plan.expert_parallel else 1) if experts else None,
        gemm_quant_mode=gemm,
        moe_quant_mode=moe,
        kvcache_quant_mode=cache,
        copies=plan.replicas,
    )


def estimate_run(run: PlannedRun, config: Mapping[str, object]) -> AiconfiguratorEstimate:
    """Estimate of a run by aiconfigurator.

    Args:
        run: Run to estimate.
        config: The model's `config.json`; written to a temporary folder for the call.

    Raises:
        InputError: aiconfigurator is not installed.
        PlanError: aiconfigurator has no estimate; its own reason is in the message.
    """
    require_installed()
    published = shape_from_config(config, name=run.shape.name, source="").quantization
    call = call_for(run, published)
    written = with_architecture(config)
    with tempfile.TemporaryDirectory(prefix="servetune-") as folder:
        model = Path(folder) / run.shape.name.replace("/", "--")
        model.mkdir()
        (model / "config.json").write_text(json.dumps(written), encoding="utf-8")
        found = _call(str(model), call, run.shape.name)
    e2e_ms = found.ttft + max(0, call.osl - 1) * found.tpot
    return AiconfiguratorEstimate(
        concurrency=round(found.concurrency) * call.copies,
        ttft_ms=float(found.ttft),  # its numbers may be numpy's, which JSON does not know
        tpot_ms=float(found.tpot),
        e2e_ms=float(e2e_ms),
        output_tokens_per_s=float(found.tokens_per_second) * call.copies,
        predictor=f"{PACKAGE} {metadata.version(PACKAGE)}, its table of "
        f"{found.backend_name} {found.backend_version} on {found.system_name}",
        warning=found.kv_cache_warning or "",
    )


def with_architecture(config: Mapping[str, object]) -> JsonObject:
    """Configuration with the class name by which aiconfigurator chooses its model.

    Raises:
        PlanError: aiconfigurator knows no class for this kind of model.
    """
    if config.get("architectures"):
        return dict(config)
    kind = str(config.get("model_type") or "")
    name, nested = _WORDS["classes"].get(kind), _WORDS["nested_classes"].get(kind)
    if not (name or nested):
        raise PlanError(
            f"{PACKAGE} has no answer: it knows no model of type '{kind or 'unnamed'}'",
            hint="leave --estimator out for servetune's own",
        )
    body = {"text_config": dict(config), "model_type": kind} if nested else dict(config)
    return body | {"architectures": [name or nested]}


def estimate_columns(estimate: AiconfiguratorEstimate) -> dict[str, Cell]:
    """Output columns of a table's row; aiconfigurator states no interval."""
    return {
        "ttft_ms": rounded(estimate.ttft_ms),
        "tpot_ms": rounded(estimate.tpot_ms),
        "e2e_ms": rounded(estimate.e2e_ms),
        "output_tokens_per_s": rounded(estimate.output_tokens_per_s),
        "fits": "false" if estimate.warning else "true",
    }


def _call(model: str, call: EstimateCall, name: str) -> Any:
    """Answer of aiconfigurator; its exceptions become `PlanError`, its prints are dropped."""
    for logger in (PACKAGE, f"{PACKAGE}_core"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    with contextlib.redirect_stdout(io.StringIO()):  # stdout is for results
        try:
            from aiconfigurator.cli.api import cli_estimate

            return cli_estimate(model, **call.arguments())
        except Exception as error:
            # Its own classes, KeyError and ValueError all mean that it has no estimate.
            text = str(error).replace(model, name).strip().splitlines()
            reason = _PATH.sub("", text[0])[:300] if text else ""
            raise PlanError(
                f"{PACKAGE} has no answer: {type(error).__name__}: {reason}",
                hint="leave --estimator out for servetune's own, which extrapolates",
            ) from error


def _word(words: Mapping[str, str], name: str, what: str) -> str:
    if name not in words:
        raise PlanError(
            f"{PACKAGE} has no answer: it knows no {what} {name}",
            hint=f"it knows {', '.join(words)}; servetune's own estimator answers for others too",
        )
    return words[name]


def _scheme(stored: Quantization, scopes: tuple[str, ...]) -> str:
    """Scheme of matrices in these scopes, `int4` for any group."""
    part = stored.covering(scopes)
    scheme = part.scheme if part else "none"
    return "int4" if scheme.startswith("int4_") else scheme
