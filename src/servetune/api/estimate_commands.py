"""Commands to paste: the plan of an estimate tuned or simulated, the runs to calibrate by."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

from servetune.api.estimate_text import Split
from servetune.api.notes import note
from servetune.engines import DEFAULT_ENGINE, Words, engine, settings_of
from servetune.hardware import Node, instances
from servetune.perf import AnchorRun
from servetune.plan import Plan
from servetune.workload import Workload


def tune_commands(
    fitting: Sequence[Split],
    best: Split,
    node: Node,
    workload: Workload,
    *,
    constraints: str | None,
    centre: int,
    rate: float | None = None,
    named: str | None = None,
) -> dict[str, str]:
    """Commands that try a plan: a simple sweep, a wider one, and the same in virtual time.

    The loads lie around `centre` users, which are expected to hold the constraints, and within what
    keeps running at the same time; where requests come at a `rate`, around that. Where tokens are
    drafted, `drafting` simulates the best plan with the acceptance that was given: a sweep starts
    engines, which take no such number. `named` is the name or file of the workload, if it has one.
    """
    limits = best.answer.limits
    assert limits is not None
    most = max(1, limits.overall)
    centre = min(centre, most)
    loads = sorted({max(1, centre // 2), centre, min(most, centre + max(1, centre // 2))})
    alike = [s.plan for s in fitting if s.plan.expert_parallel == best.plan.expert_parallel]
    words = engine(best.plan.engine).words
    lengths = f"workload={named}" if named else _client_lengths(workload)
    asked = f"max_concurrency={_listed(loads)};num_prompts={max(1000, 2 * loads[-1])}"
    if rate is not None:
        asked = f"request_rate={_listed([rate / 2, rate, 1.5 * rate])};num_prompts=1000"
    client = f"{asked};{lengths}"
    about = ["--model", best.plan.model, *_machine(node)]
    wanted = ["--constraints", constraints] if constraints else []

    def tune(engine_name: str, server: str) -> str:
        arguments = ["servetune", "tune", "--engine", engine_name, *about]
        arguments += ["--server-args", server, "--client-args", client, *wanted]
        return shlex.join([*arguments, "--output-json", f"results/{engine_name}.json"])

    def simulate(users: int) -> str:
        load = f"max_concurrency={users};num_prompts={max(1000, 2 * users)}"
        if rate is not None:
            load = f"request_rate={rate:.6g};num_prompts=1000"
        load = f"{load};{lengths}"
        plan = _plan_options(best.plan)
        return shlex.join(["servetune", "simulate", *about, *plan, "--client-args", load, *wanted])

    if not words.says_drafts(best.plan):
        note(
            f"note: no server can be tuned until --server-args name the checkpoint that drafts by "
            f"{best.plan.draft_method}"
        )
        return {"drafting": simulate(centre)}
    simple = _splits(alike, words) + _fixed(best.plan, words)
    advanced = f"{simple};{words.name_of('max_num_batched_tokens')}=[2048,8192,16384]"
    commands = {
        "simple": tune(best.plan.engine, simple),
        "advanced": tune(best.plan.engine, advanced),
    }
    simulated = engine(best.plan.engine).simulated_as
    commands["simulated"] = tune(simulated, advanced) if simulated else simulate(centre)
    if best.plan.draft_tokens is not None:
        commands["drafting"] = simulate(centre)
    return commands


def journal_command(plan: Plan, node: Node, workload: Workload, users: int, stem: str) -> str:
    """The command that makes a journal of one plan at one load, from which it can be deployed.

    Simulated where the engine can be, as nothing is measured yet.
    """
    served = engine(plan.engine)
    load = f"max_concurrency={users};num_prompts={max(1000, 2 * users)};{_client_lengths(workload)}"
    arguments = ["servetune", "tune", "--engine", served.simulated_as or plan.engine]
    arguments += ["--model", plan.model, *_machine(node), "--server-args", _server_args(plan)]
    return shlex.join([*arguments, "--client-args", load, "--output-json", f"{stem}.json"])


#: Requests per user of a measured anchor, as in the tables that similarity was fitted to.
_ANCHOR_GENERATIONS = 10


def anchor_commands(
    runs: Sequence[AnchorRun], node: Node, workload: Workload, name: str
) -> list[str]:
    """Commands that measure the runs, one for each plan, and keep what they say under a name."""
    loads: dict[Plan, list[int]] = {}
    for run in runs:
        loads.setdefault(run.plan, []).append(run.point.concurrency)
    commands, journals = [], []
    for number, (plan, users) in enumerate(loads.items(), start=1):
        users.sort()
        count = max(100, _ANCHOR_GENERATIONS * users[-1])
        load = f"max_concurrency={_listed(users)};num_prompts={count};{_client_lengths(workload)}"
        stem = f"results/{name}-{number}"
        journals.append(f"{stem}.jsonl")
        arguments = ["servetune", "tune", "--engine", DEFAULT_ENGINE, "--model", plan.model]
        arguments += [*_machine(node), "--server-args", _server_args(plan), "--client-args", load]
        commands.append(shlex.join([*arguments, "--output-json", f"{stem}.json"]))
    return [*commands, shlex.join(["servetune", "calibrate", *journals, "--name", name])]


def _server_args(plan: Plan) -> str:
    """All that the plan says, as items of `--server-args`; its copies behind one address."""
    plan = msgspec.structs.replace(plan, data_parallel=plan.data_parallel * plan.replicas)
    return ";".join(f"{name}={_scalar(value)}" for name, value in settings_of(plan).items())


def _splits(plans: Sequence[Plan], words: Words) -> str:
    """Tensor parallelism and copies, as items of a sweep; one GPU leaves nothing to vary.

    An engine without a setting for copies runs one.
    """
    tensor, data = words.name_of("tensor_parallel"), words.name_of("data_parallel")
    degrees = [(plan.tensor_parallel, plan.replicas) for plan in plans]
    if data is None:
        return f"{tensor}={_listed([degree for degree, _ in degrees])}"
    if len(degrees) > 1:
        pairs = ",".join(f"({degree},{copies})" for degree, copies in degrees)
        return f"{tensor}*{data}=[{pairs}]"
    [(degree, copies)] = degrees
    return f"{tensor}={degree}" + (f";{data}={copies}" * (copies > 1))


def _fixed(plan: Plan, words: Words) -> str:
    """Settings of the plan besides the degrees that a sweep varies, as items of it."""
    alone = msgspec.structs.replace(plan, data_parallel=1, replicas=1)
    swept = (words.name_of("tensor_parallel"), words.name_of("data_parallel"))
    chosen = {name: value for name, value in settings_of(alone).items() if name not in swept}
    return "".join(f";{name}={_scalar(value)}" for name, value in chosen.items())


def _scalar(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _client_lengths(workload: Workload) -> str:
    pair = workload.lengths.fixed_pair
    if pair is None:
        return "dataset_name=sharegpt"
    shared, alone, common = workload.shared_prefix(), pair[0], ""
    if shared is not None and shared.tokens is not None:
        tokens = round(shared.tokens)
        alone, common = alone - tokens, f";random_prefix_len={tokens};num_prefixes={shared.count}"
    elif shared is not None:
        common = f";distinct_prompts={shared.count}"
    return (
        f"dataset_name=random;random_input_len={alone};random_output_len={pair[1]};"
        f"random_range_ratio=0.95{common}"
    )


def _machine(node: Node) -> list[str]:
    for service in ("sagemaker", "ec2"):
        rented = instances(service).get(node.name)
        if rented is not None:
            count = ["--num-gpus", str(node.device_count)]
            return [
                "--instance",
                node.name,
                *(count if rented.device_count != node.device_count else []),
            ]
    return ["--gpu", node.device.name, "--num-gpus", str(node.device_count)]


def _plan_options(plan: Plan) -> list[str]:
    """The plan in the words of `servetune simulate`."""
    words = engine(plan.engine).words
    beside = [(name, value) for name, value in plan.extra if name in words.drafts_beside(plan)]
    given = {
        "--engine": plan.engine if plan.engine != DEFAULT_ENGINE else None,
        "--tensor-parallel": plan.tensor_parallel,
        "--replicas": plan.replicas if plan.replicas > 1 else None,
        "--quantization": plan.quantization,
        "--kv-cache-dtype": plan.kv_cache_dtype,
        "--max-model-len": plan.max_model_len,
        "--draft-tokens": None if beside else plan.draft_tokens,
        "--draft-method": None if beside else plan.draft_method,
        "--draft-acceptance": plan.draft_acceptance_fraction,
    }
    options: list[str] = []
    for name, value in given.items():
        options += [] if value is None else [name, str(value)]
    stages = words.name_of("pipeline_parallel")
    settings = ["enable_expert_parallel=true"] if plan.expert_parallel else []
    settings += [f"{name}={_scalar(value)}" for name, value in beside]
    settings += [f"{stages}={plan.pipeline_parallel}"] if plan.pipeline_parallel > 1 else []
    return options + (["--server-args", ";".join(settings)] if settings else [])


def _listed(numbers: Sequence[float]) -> str:
    return f"[{','.join(f'{number:.6g}' for number in numbers)}]"
