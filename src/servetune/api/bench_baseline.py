"""Comparison of a load test with the earlier trial that it should reproduce."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from servetune.api.aws_region import region_of
from servetune.api.bench_request import Bench, values_of
from servetune.api.comparing import reaches_of, reaches_of_requests, requests_beside
from servetune.api.inputs import read_records, require_file
from servetune.api.notes import note, progress
from servetune.api.request import request_of
from servetune.api.waiting import completed
from servetune.clock import MonotonicClock
from servetune.deploy.aws import AwsClient
from servetune.deploy.aws.hosted_container import Hosted, hosted, hosted_plan
from servetune.deploy.bundle import PLAN_FILE
from servetune.deploy.deployment import DEPLOYMENT_FILE, read_deployment
from servetune.deploy.from_trial import TRIAL_FILE
from servetune.engines import DEFAULT_ENGINE, plan_from_settings
from servetune.errors import InputError, ServetuneError
from servetune.loadgen import Target
from servetune.perf.copies import host_fraction
from servetune.plan import Plan
from servetune.report.baseline import BaselineComparison, compare_with_baseline
from servetune.report.changes import RunResults
from servetune.report.replicas import scaled_results
from servetune.store import TrialRecord, read_json
from servetune.trials import Benched
from servetune.trials.read_back import (
    ReadBack,
    cloudwatch_log,
    differences,
    of_plan,
    read_log,
    read_server,
)
from servetune.workload import CLIENT_ARGS, LoadOptions, load_options

#: Fields about what is asked; one that is given replaces all of the trial's.
_WHAT = (
    "workload", "input_tokens", "output_tokens", "dataset", "prompt_column", "output_column",
    "dataset_min_tokens", "dataset_max_tokens", "turns", "turn_tokens", "think_s",
    "shared_prefix_tokens", "prefixes", "distinct_prompts", "adapters", "trace", "time_scale",
)  # fmt: skip
#: Fields about when it is asked.
_WHEN = ("concurrency", "rate", "arrivals")


def reproducing(request: Bench) -> tuple[Bench, TrialRecord | None]:
    """Request with the load of the trial that it shall reproduce, and that trial, if any."""
    folder = request.baseline.against
    request = with_bundle(request)
    trial = earlier_trial(request)
    if trial is None:
        return request, None
    measured = copies_of_trial(trial)
    copies, machines = _copies_there(request, folder, trial)
    times = copies / measured
    if times == 1:
        return like_trial(request, trial), trial
    shared = host_fraction(copies, machines) / host_fraction(measured)
    where = "one machine" if machines == 1 else f"{machines} machines"
    progress(
        f"{copies} copies on {where}, and the trial had {measured}: {times:g} times its load is "
        f"sent; expected are {times:g} times its throughput less {1 - shared:.1%}"
    )
    results = scaled_results(trial.results, times, shared)
    fleet = msgspec.structs.replace(trial, results=results)
    return like_trial(request, trial, times=times), fleet


def copies_of_trial(trial: TrialRecord) -> int:
    """Copies that shared a trial's requests."""
    plan = _plan_of(trial)
    if plan is None:
        return 1
    return plan.replicas * (1 if plan.expert_parallel else plan.data_parallel)


def _copies_there(request: Bench, folder: Path | None, trial: TrialRecord) -> tuple[int, int]:
    """Copies behind the addresses, and the machines that they are on."""
    asked = request.baseline
    bundled = _copies_of_bundle(folder, copies_of_trial(trial)) if folder else None
    if bundled is not None:
        copies, machines = bundled
        if asked.copies:  # as close together as those of the bundle
            machines = -(-asked.copies * machines // copies)
    else:
        urls = request.server.urls
        copies = asked.copies or max(len(urls), copies_of_trial(trial))
        machines = max(1, len({urlsplit(url).hostname for url in urls}))
        if len(urls) < copies:  # an address of several, which may be of more than one machine
            machines = max(machines, -(-copies // (_most_on_machine(trial) or copies)))
    return asked.copies or copies, asked.machines or machines


def _copies_of_bundle(folder: Path, measured: int) -> tuple[int, int] | None:
    """Copies and machines of a bundle with one address for all; `None` for one of addresses.

    A bundle of Compose, systemd or scripts has an address for each copy, of which those that are
    given are asked; one of a cluster or of SageMaker has one for all.
    """
    if not folder.is_dir():
        return None
    about = read_json(folder / PLAN_FILE)
    if (folder / DEPLOYMENT_FILE).is_file():
        deployment = read_deployment((folder / DEPLOYMENT_FILE).read_text("utf-8"))
        hosting = deployment.hosting
        return hosting.copies or hosting.instance_count * measured, hosting.instance_count
    if about.get("target") in ("kubernetes", "kserve", "bentoml"):
        copies = max(int(about["plan"].get("replicas", 1)), measured)
        return copies, int(about.get("machines", 1))
    return None


def _most_on_machine(trial: TrialRecord) -> int | None:
    """Copies that the trial's machine holds; `None` where its devices are not known."""
    plan, devices = _plan_of(trial), trial.metadata.gpu_count
    return int(devices) * copies_of_trial(trial) // plan.device_count if plan and devices else None


def with_bundle(request: Bench) -> Bench:
    """Request with the trial, endpoint and model of a bundle behind --against.

    A URL or an endpoint that is given stays.

    Raises:
        InputError: The folder is no bundle of an endpoint.
    """
    folder = request.baseline.against
    if folder is None or not folder.is_dir():
        return request
    if not (folder / TRIAL_FILE).is_file():
        raise InputError(
            f"{folder} has no {TRIAL_FILE}",
            hint="give a bundle of servetune deploy, or the .jsonl or .json of a run",
        )
    filled: dict[str, Any] = {"against": folder / TRIAL_FILE}
    if request.server.urls or request.endpoint.sagemaker:
        return request_of(Bench, request, filled)
    if not (folder / DEPLOYMENT_FILE).is_file():
        raise InputError(
            f"{folder} is no endpoint's bundle: it names no address of a server",
            hint=f"servetune bench http://ADDRESS:PORT --against {folder}",
        )
    deployment = read_deployment((folder / DEPLOYMENT_FILE).read_text("utf-8"))
    components = [step.name for step in deployment.steps if step.kind == "component"]
    filled["sagemaker"] = deployment.endpoint
    filled["region"] = request.endpoint.region or deployment.region
    filled["model"] = request.server.model or read_json(folder / PLAN_FILE)["served_model"]
    if components and not (request.endpoint.component or request.endpoint.adapter):
        filled["component"] = components[0]
    return request_of(Bench, request, filled)


def earlier_trial(request: Bench) -> TrialRecord | None:
    """The trial to reproduce; `None` where none is asked for.

    Raises:
        InputError: Several trials match, or none can.
        StoreError: The file holds no trial.
    """
    if request.baseline.engine_log is not None:
        require_file(request.baseline.engine_log)
    if request.baseline.against is None:
        for name in ("trial", "engine_log", "copies", "machines"):
            if values_of(request).get(name):
                raise InputError(
                    f"--{name.replace('_', '-')} is for --against", hint="give --against FILE too"
                )
        return None
    records = [record for record in read_records(request.baseline.against) if record.status == "ok"]
    if request.baseline.trial:
        chosen = [record for record in records if record.key == request.baseline.trial]
        if not chosen:
            raise InputError(
                f"no trial of {request.baseline.against} that ended well has the key "
                f"{request.baseline.trial}",
                hint=_keys(records),
            )
        return chosen[0]
    if request.load.concurrency is not None and len(records) > 1:
        records = [
            record
            for record in records
            if record.results.max_concurrency == request.load.concurrency
        ]
    if len(records) != 1:
        what = "no trial" if not records else f"{len(records)} trials"
        raise InputError(
            f"{what} of {request.baseline.against} match",
            hint=f"give --trial KEY: {_keys(records)}",
        )
    return records[0]


def like_trial(request: Bench, trial: TrialRecord, *, times: float = 1) -> Bench:
    """Request with the trial's load in place of what is not given.

    Args:
        request: The request.
        trial: The trial.
        times: Multiple of the trial's load that is sent, for as many times its copies.

    Raises:
        InputError: What is given is another load than the trial's, or it cannot be multiplied.
    """
    concurrency = trial.results.max_concurrency
    if concurrency is not None:
        concurrency = round(times * concurrency)
    if request.load.concurrency is not None and concurrency not in (None, request.load.concurrency):
        raise InputError(
            f"the trial had {concurrency} requests in flight, not {request.load.concurrency}"
            if times == 1
            else f"{times:g} times the trial's load are {concurrency} requests in flight, not "
            f"{request.load.concurrency}",
            hint="leave --concurrency out",
        )
    own = any(
        values_of(request).get(name) for name in ("workload", "dataset", "input_tokens", "trace")
    )
    paced = request.load.rate is not None or request.load.arrivals is not None
    changes: dict[str, Any] = {} if request.server.model else {"model": trial.metadata.model}
    options = _times(_options_of(trial, own=own), times)
    unset = LoadOptions()
    for name in LoadOptions.__struct_fields__:
        value, default = getattr(options, name), getattr(unset, name)
        chosen = values_of(request).get(name)
        given = chosen not in (None, ()) and (name == "seed" or chosen != default)
        if given or (value == default and name != "seed"):
            continue
        if not (own and name in _WHAT) and not (paced and name in _WHEN):
            changes[name] = value
    changed = [f"{name}={value}" for name, value in changes.items() if value is not None]
    if not (request.load.dataset or changes.get("dataset")):
        # The same words again would be found in the prefix cache of a server that had them.
        changes["words_seed"] = 1 + secrets.randbelow(2**31)
        changed.append("words of their own")
    if changed:
        progress(f"as trial {trial.key}: {', '.join(changed)}")
    return request_of(Bench, request, changes)


def _times(options: LoadOptions, times: float) -> LoadOptions:
    """So many times a load, for as long."""
    if times == 1:
        return options
    if options.arrivals is not None or options.trace is not None:
        raise InputError(
            "the trial's arrivals cannot be multiplied for several copies",
            hint="give --copies of the trial, and the address of as many",
        )
    scaled: dict[str, Any] = {}
    for name in ("concurrency", "requests"):
        value = getattr(options, name)
        if value is not None:
            scaled[name] = max(1, round(times * value))
    if options.rate is not None:
        scaled["rate"] = times * options.rate
    return msgspec.structs.replace(options, **scaled)


def compare(
    request: Bench, trial: TrialRecord, benched: Benched
) -> tuple[BaselineComparison, Benched]:
    """The comparison, and the run with it in its record; settings are read where it fails.

    Requests that are beside the trial show its doubt, as in `servetune compare`.
    """
    compared = compare_with_baseline(
        RunResults(results=trial.results, reaches=_reaches_beside(request, trial)),
        RunResults(
            results=benched.record.results,
            reaches=reaches_of_requests(benched.result.records),
        ),
        key=trial.key,
        tolerance=request.baseline.tolerance,
    )
    if not compared.reproduced:
        lines = _named_differences(request, trial, benched)
        compared = msgspec.structs.replace(compared, differences=tuple(lines))
    results = {**benched.record.results, "against": compared.to_json()}
    record = msgspec.structs.replace(benched.record, results=results)
    return compared, msgspec.structs.replace(benched, record=record)


def _reaches_beside(request: Bench, trial: TrialRecord) -> dict[str, float] | None:
    path = request.baseline.against
    if path is None or not path.is_file():
        return None
    return reaches_of(requests_beside(path, read_records(path)).get(trial.key))


def _named_differences(request: Bench, trial: TrialRecord, benched: Benched) -> list[str]:
    plan = _plan_of(trial)
    if plan is None:
        return ["the trial does not say its server's settings"]
    read = _read_back(request, benched)
    if read is None:
        return ["the engine tells nothing of its settings; --engine-log FILE has them"]
    found = differences(plan, read)
    return found or [f"{read.source} names no setting that differs from the trial's"]


def _read_back(request: Bench, benched: Benched) -> ReadBack | None:
    if request.baseline.engine_log is not None:
        return read_log(request.baseline.engine_log.read_text("utf-8", "replace"))
    if request.endpoint.sagemaker:
        return _sagemaker(request)
    target = Target(  # the first server that was asked
        base_url=request.server.urls[0],
        model=benched.record.metadata.model or "",
        api_key_env=request.server.api_key_env,
        cafile=str(request.server.cafile) if request.server.cafile else None,
    )
    return read_server(target)


def _sagemaker(request: Bench) -> ReadBack | None:
    """What the engine says in CloudWatch, else what its container was given.

    Each may be asked only where these credentials allow it; what is not, is told.
    """
    assert request.endpoint.sagemaker is not None
    profile = request.endpoint.profile
    region = region_of(request.endpoint.region, profile)
    aws = AwsClient(region, clock=MonotonicClock(), profile=profile)
    component = request.endpoint.component or request.endpoint.adapter or ""
    found = None
    try:
        found = completed(hosted(aws, request.endpoint.sagemaker, component))
    except ServetuneError as error:
        note(f"note: the endpoint's settings cannot be read: {error.message}")
    read = _sagemaker_log(aws, request.endpoint.sagemaker, component, found)
    return read or _given(found)


def _given(found: Hosted | None) -> ReadBack | None:
    try:
        plan = hosted_plan(found) if found else None
    except ServetuneError as error:
        note(f"note: the endpoint's settings cannot be read: {error.message}")
        return None
    return of_plan(plan, "what its container was given") if plan else None


def _sagemaker_log(
    aws: AwsClient, endpoint: str, component: str, found: Hosted | None
) -> ReadBack | None:
    """Log in CloudWatch, if these credentials may read it."""
    import botocore.exceptions

    try:
        text = cloudwatch_log(
            aws.client("logs"),
            endpoint=endpoint,
            component=component,
            since_s=found.since_s if found else None,
        )
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        note(f"note: the endpoint's log cannot be read: {error}")
        return None
    return read_log(text)


def _plan_of(trial: TrialRecord) -> Plan | None:
    if trial.plan is not None:
        return trial.plan
    if not trial.config.server_args:
        return None

    engine = str(trial.metadata.engine or trial.results.backend or DEFAULT_ENGINE)
    try:
        return plan_from_settings(engine, trial.metadata.model or "", trial.config.server_args)
    except ServetuneError:
        return None


def _keys(records: list[TrialRecord]) -> str:
    shown = [
        f"{record.key} (concurrency {record.results.get('max_concurrency')})"
        for record in records[:8]
    ]
    return ", ".join(shown) or "it has no trial that ended well under such a load"


def _options_of(trial: TrialRecord, *, own: bool) -> LoadOptions:
    """Options that ask what a trial asked.

    Args:
        trial: Record of `bench`, `tune` or `simulate`.
        own: Whether the user says what is asked.

    Raises:
        InputError: Its prompts were those of a data set, which the record does not hold.
    """
    args = dict(trial.config.client_args)
    dataset = args.get("dataset_name")
    source = {"dataset", "dataset_path", "trace", "workload"} & args.keys()
    if dataset not in (None, "random", "random-ids") and not source and not own:
        raise InputError(
            f"the trial used prompts of the data set {dataset}",
            hint="give the file with --dataset FILE",
        )
    if own or {"dataset", "workload"} & args.keys():
        for name in ("dataset_name", "dataset_path"):
            args.pop(name, None)
    known = {name: value for name, value in args.items() if name in CLIENT_ARGS}
    if "request_rate" not in known and "rate" not in known:
        known.setdefault("max_concurrency", trial.results.max_concurrency)
    return load_options({name: value for name, value in known.items() if value is not None})
