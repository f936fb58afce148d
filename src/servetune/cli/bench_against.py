"""`servetune bench --against`: does this server do what an earlier trial did?"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from servetune.cli import options
from servetune.cli.output import echo
from servetune.errors import InputError, ServetuneError

if TYPE_CHECKING:
    from servetune.deploy.aws import AwsClient
    from servetune.deploy.aws.hosted_container import Hosted
    from servetune.plan import Plan
    from servetune.report.baseline import BaselineComparison
    from servetune.store import TrialRecord
    from servetune.trials import Benched
    from servetune.trials.read_back import ReadBack
    from servetune.workload import LoadOptions

__all__ = ["OPTIONS", "as_before", "compare", "earlier_trial", "with_bundle"]

OPTIONS: tuple[Callable[[Callable[..., Any]], Callable[..., Any]], ...] = (
    click.option(
        "--against",
        type=click.Path(path_type=Path),
        default=None,
        metavar="FILE|BUNDLE",
        help="Journal, summary or bundle with the trial that this should reproduce; exit 1 if "
        "worse. A bundle also says which endpoint.",
    ),
    click.option("--trial", default=None, metavar="KEY", help="Of --against. [default: by load]"),
    click.option(
        "--tolerance",
        type=options.POSITIVE,
        default=0.05,
        show_default=True,
        help="Difference from run to run that is none.",
    ),
    click.option(
        "--engine-log",
        type=click.Path(path_type=Path),
        default=None,
        metavar="FILE",
        help="The server's start-up log, to read its settings from.",
    ),
)

#: Options of this command by the fields of `LoadOptions` that they are.
_NAMES = {"shared_prefix_tokens": "shared_prefix", "adapters": "lora", "requests": "request_count"}
#: Fields about what is asked; one that is given replaces all of the trial's.
_WHAT = (
    "workload", "input_tokens", "output_tokens", "dataset", "prompt_column", "output_column",
    "dataset_min_tokens", "dataset_max_tokens", "turns", "turn_tokens", "think_s",
    "shared_prefix_tokens", "prefixes", "adapters", "trace", "time_scale",
)  # fmt: skip
#: Fields about when it is asked.
_WHEN = ("concurrency", "rate", "arrivals")


def with_bundle(said: dict[str, Any]) -> dict[str, Any]:
    """The options with what a bundle behind --against says: its trial, endpoint and model.

    A URL or an endpoint that is named stays what is asked.

    Raises:
        InputError: The folder is no bundle of an endpoint.
    """
    from servetune.deploy.bundle import PLAN_FILE
    from servetune.deploy.deployment import DEPLOYMENT_FILE, read_deployment
    from servetune.deploy.from_trial import TRIAL_FILE
    from servetune.store import read_json

    folder = said["against"]
    if folder is None or not folder.is_dir():
        return said
    if not (folder / TRIAL_FILE).is_file():
        raise InputError(
            f"{folder} has no {TRIAL_FILE}",
            hint="give a bundle of servetune deploy, or the .jsonl or .json of a run",
        )
    filled = {**said, "against": folder / TRIAL_FILE}
    if said["urls"] or said["sagemaker"]:
        return filled
    if not (folder / DEPLOYMENT_FILE).is_file():
        raise InputError(
            f"{folder} is no endpoint's, so it does not say where the server answers",
            hint=f"servetune bench http://ADDRESS:PORT --against {folder}",
        )
    deployment = read_deployment((folder / DEPLOYMENT_FILE).read_text("utf-8"))
    components = [step.name for step in deployment.steps if step.kind == "component"]
    filled["sagemaker"] = deployment.endpoint
    filled["region"] = said["region"] or deployment.region
    filled["model"] = said["model"] or read_json(folder / PLAN_FILE)["served_model"]
    if components and not (said["component"] or said["adapter"]):
        filled["component"] = components[0]
    return filled


def earlier_trial(said: Mapping[str, Any]) -> TrialRecord | None:
    """The trial to reproduce; `None` where none is asked for.

    Raises:
        InputError: Several trials could be meant, or none can.
        StoreError: The file holds no trial.
    """
    from servetune.api.inputs import read_records, require_file

    if said["engine_log"] is not None:
        require_file(said["engine_log"])
    if said["against"] is None:
        for name in ("trial", "engine_log"):
            if said[name]:
                raise InputError(
                    f"--{name.replace('_', '-')} is for --against", hint="say --against FILE too"
                )
        return None
    records = [record for record in read_records(said["against"]) if record.status == "ok"]
    if said["trial"]:
        chosen = [record for record in records if record.key == said["trial"]]
        if not chosen:
            raise InputError(
                f"no trial of {said['against']} that ended well has the key {said['trial']}",
                hint=_keys(records),
            )
        return chosen[0]
    if said["concurrency"] is not None and len(records) > 1:
        records = [
            record for record in records if record.results.max_concurrency == said["concurrency"]
        ]
    if len(records) != 1:
        what = "no trial" if not records else f"{len(records)} trials"
        raise InputError(
            f"{what} of {said['against']} could be meant", hint=f"say --trial KEY: {_keys(records)}"
        )
    return records[0]


def as_before(said: Mapping[str, Any], trial: TrialRecord) -> dict[str, Any]:
    """The options with the trial's load in place of what was not said.

    Raises:
        InputError: What was said is another load than the trial's.
    """
    from servetune.workload import LoadOptions

    filled = dict(said)
    concurrency = trial.results.max_concurrency
    if said["concurrency"] is not None and concurrency not in (None, said["concurrency"]):
        raise InputError(
            f"the trial had {concurrency} requests in flight, not {said['concurrency']}",
            hint="leave --concurrency out",
        )
    own = any(said[name] for name in ("workload", "dataset", "input_tokens", "trace"))
    paced = said["rate"] is not None or said["arrivals"] is not None
    changes = {"model": trial.metadata.model} if said["model"] is None else {}
    options = _options_of(trial, own=own)
    for field in LoadOptions.__struct_fields__:
        name, value, default = _NAMES.get(field, field), getattr(options, field), _default(field)
        if name not in said or said[name] not in (None, default) or value == default:
            continue
        if not (own and field in _WHAT) and not (paced and field in _WHEN):
            changes[name] = value
    told = [f"{name}={value}" for name, value in changes.items() if value is not None]
    filled |= changes
    if not filled["dataset"]:
        # The same words again would be found in the prefix cache of a server that had them.
        filled["words_seed"] = 1 + secrets.randbelow(2**31)
        told.append("words of their own")
    if told:
        echo(f"as trial {trial.key}: {', '.join(told)}")
    return filled


def compare(
    said: Mapping[str, Any], trial: TrialRecord, benched: Benched, *, ask: bool = True
) -> tuple[BaselineComparison, Benched]:
    """The comparison, and the run with it in its record; settings are read where it fails."""
    from servetune.report.baseline import compare_with_baseline

    compared = compare_with_baseline(
        trial.results, benched.record.results, key=trial.key, tolerance=said["tolerance"]
    )
    if not compared.reproduced and ask:
        lines = _named_differences(said, trial, benched)
        compared = msgspec.structs.replace(compared, differences=tuple(lines))
    results = {**benched.record.results, "against": compared.to_json()}
    record = msgspec.structs.replace(benched.record, results=results)
    return compared, msgspec.structs.replace(benched, record=record)


def _named_differences(said: Mapping[str, Any], trial: TrialRecord, benched: Benched) -> list[str]:
    from servetune.trials.read_back import differences

    plan = _plan_of(trial)
    if plan is None:
        return ["the trial does not say its server's settings"]
    read = _read_back(said, benched)
    if read is None:
        return ["the engine tells nothing of its settings; --engine-log FILE has them"]
    found = differences(plan, read)
    return found or [f"{read.source} names no setting that differs from the trial's"]


def _read_back(said: Mapping[str, Any], benched: Benched) -> ReadBack | None:
    from servetune.trials.read_back import read_log, read_server

    if said["engine_log"] is not None:
        return read_log(said["engine_log"].read_text("utf-8", "replace"))
    if said["sagemaker"]:
        return _sagemaker(said)
    return read_server(benched_target(said, benched))


def benched_target(said: Mapping[str, Any], benched: Benched) -> Any:
    """The first server that was asked, for questions."""
    from servetune.loadgen import Target

    return Target(
        base_url=said["urls"][0],
        model=benched.record.metadata.model or "",
        api_key_env=said["api_key_env"],
        cafile=str(said["cafile"]) if said["cafile"] else None,
    )


def _sagemaker(said: Mapping[str, Any]) -> ReadBack | None:
    """What the engine says in CloudWatch, else what its container was given.

    Each may be asked only where these credentials allow it; what is not, is told.
    """
    from servetune.clock import MonotonicClock
    from servetune.deploy.aws import AwsClient
    from servetune.deploy.aws.hosted_container import hosted

    aws = AwsClient(_region(said), clock=MonotonicClock(), profile=said["profile"])
    component = said["component"] or said["adapter"] or ""
    found = None
    try:
        found = asyncio.run(hosted(aws, said["sagemaker"], component))
    except ServetuneError as error:
        echo(f"note: the endpoint's settings cannot be read: {error.message}")
    read = _sagemaker_log(aws, said["sagemaker"], component, found)
    return read or _given(found)


def _given(found: Hosted | None) -> ReadBack | None:
    from servetune.deploy.aws.hosted_container import hosted_plan
    from servetune.trials.read_back import of_plan

    try:
        plan = hosted_plan(found) if found else None
    except ServetuneError as error:
        echo(f"note: the endpoint's settings cannot be read: {error.message}")
        return None
    return of_plan(plan, "what its container was given") if plan else None


def _sagemaker_log(
    aws: AwsClient, endpoint: str, component: str, found: Hosted | None
) -> ReadBack | None:
    """Of CloudWatch, if these credentials may read it."""
    import botocore.exceptions

    from servetune.trials.read_back import cloudwatch_log, read_log

    try:
        text = cloudwatch_log(
            aws.client("logs"),
            endpoint=endpoint,
            component=component,
            since_s=found.since_s if found else None,
        )
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        echo(f"note: the endpoint's log cannot be read: {error}")
        return None
    return read_log(text)


def _region(said: Mapping[str, Any]) -> str:
    import botocore.session

    region = said["region"] or botocore.session.Session(
        profile=said["profile"]
    ).get_config_variable("region")
    return str(region)  # the run that just ended had one


def _plan_of(trial: TrialRecord) -> Plan | None:
    if trial.plan is not None:
        return trial.plan
    if not trial.config.server_args:
        return None
    from servetune.engines import DEFAULT_ENGINE, plan_from_settings

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


def _default(field: str) -> Any:
    from servetune.workload import LoadOptions

    return getattr(LoadOptions(), field)


def _options_of(trial: TrialRecord, *, own: bool) -> LoadOptions:
    """Options that ask what a trial asked.

    Args:
        trial: Record of `bench`, `tune` or `simulate`.
        own: Whether the user says what is asked.

    Raises:
        InputError: Its prompts were those of a data set, which the record does not hold.
    """
    from servetune.workload import CLIENT_ARGS, load_options

    args = dict(trial.config.client_args)
    dataset = args.get("dataset_name")
    source = {"dataset", "dataset_path", "trace", "workload"} & args.keys()
    if dataset not in (None, "random", "random-ids") and not source and not own:
        raise InputError(
            f"the trial asked prompts of the data set {dataset}",
            hint="give them: --dataset FILE",
        )
    if own or {"dataset", "workload"} & args.keys():
        for name in ("dataset_name", "dataset_path"):
            args.pop(name, None)
    known = {name: value for name, value in args.items() if name in CLIENT_ARGS}
    if "request_rate" not in known and "rate" not in known:
        known.setdefault("max_concurrency", trial.results.max_concurrency)
    return load_options({name: value for name, value in known.items() if value is not None})
