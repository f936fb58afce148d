"""`servetune bench --against`: does this server do what an earlier trial did?"""

from __future__ import annotations

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
    from servetune.plan import Plan
    from servetune.report.against import Against
    from servetune.store import TrialRecord
    from servetune.trials import Benched
    from servetune.trials.read_back import ReadBack

__all__ = ["OPTIONS", "as_before", "compare", "earlier_trial"]

OPTIONS: tuple[Callable[[Callable[..., Any]], Callable[..., Any]], ...] = (
    click.option(
        "--against",
        type=click.Path(path_type=Path),
        default=None,
        metavar="FILE",
        help="Journal or summary with the trial that this should reproduce; exit 1 if worse.",
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

#: What a record of `bench` says of its load in bench's own words.
_SAID_ALIKE = (
    "workload", "input_tokens", "output_tokens", "dataset", "turns", "shared_prefix", "rate",
    "arrivals", "api",
)  # fmt: skip


def earlier_trial(said: Mapping[str, Any]) -> TrialRecord | None:
    """The trial to reproduce; `None` where none is asked for.

    Raises:
        InputError: Several trials could be meant, or none can.
        StoreError: The file holds no trial.
    """
    from servetune.cli.inputs import read_records, require_file

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
            record
            for record in records
            if record.results.get("max_concurrency") == said["concurrency"]
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
    filled = dict(said)
    args, told = trial.config.client_args, []

    def fill(name: str, value: Any) -> None:
        if filled[name] is None and value is not None:
            filled[name] = value
            told.append(f"{name}={value}")

    concurrency = trial.results.get("max_concurrency")
    if said["concurrency"] is not None and concurrency not in (None, said["concurrency"]):
        raise InputError(
            f"the trial had {concurrency} requests in flight, not {said['concurrency']}",
            hint="leave --concurrency out",
        )
    if said["rate"] is None and said["arrivals"] is None:
        fill("concurrency", concurrency)
    fill("model", trial.metadata.get("model_tag"))
    fill("request_count", args.get("num_prompts"))
    own = not any(said[name] for name in ("workload", "dataset", "input_tokens", "trace"))
    if own:
        if args.get("dataset_name") == "random" and not args.get("random_range_ratio"):
            fill("input_tokens", _text(args.get("random_input_len")))
            fill("output_tokens", _text(args.get("random_output_len")))
        for name in _SAID_ALIKE:
            fill(name, args.get(name))
    synthetic = not filled["dataset"] and not filled["trace"]
    if synthetic and filled["seed"] == trial.metadata.get("seed"):
        # The same words again would be found in the prefix cache of a server that had them.
        filled["seed"] = 1 + secrets.randbelow(2**31)
        told.append(f"words of their own (seed={filled['seed']})")
    if told:
        echo(f"as trial {trial.key}: {', '.join(told)}")
    return filled


def compare(
    said: Mapping[str, Any], trial: TrialRecord, benched: Benched, *, ask: bool = True
) -> tuple[Against, Benched]:
    """The comparison, and the run with it in its record; settings are read where it fails."""
    from servetune.report.against import against

    compared = against(
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
        return _sagemaker_log(said)
    return read_server(benched_target(said, benched))


def benched_target(said: Mapping[str, Any], benched: Benched) -> Any:
    """The first server that was asked, for questions."""
    from servetune.loadgen import Target

    return Target(
        base_url=said["urls"][0],
        model=str(benched.record.metadata.get("model_tag", "")),
        api_key_env=said["api_key_env"],
        cafile=str(said["cafile"]) if said["cafile"] else None,
    )


def _sagemaker_log(said: Mapping[str, Any]) -> ReadBack | None:
    """Of CloudWatch, if these credentials may read it."""
    import botocore.exceptions
    import botocore.session

    from servetune.trials.read_back import cloudwatch_log, read_log

    session = botocore.session.Session(profile=said["profile"])
    try:
        client = session.create_client("logs", region_name=said["region"])
        text = cloudwatch_log(
            client,
            endpoint=said["sagemaker"],
            component=said["component"] or said["adapter"] or "",
        )
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        echo(f"note: the endpoint's log cannot be read: {error}")
        return None
    return read_log(text)


def _plan_of(trial: TrialRecord) -> Plan | None:
    if trial.plan is not None:
        return trial.plan
    if not trial.config.server_args:
        return None
    from servetune.plan import plan_from_settings

    engine = str(trial.metadata.get("framework") or trial.results.get("backend") or "vllm")
    try:
        return plan_from_settings(
            engine, str(trial.metadata.get("model_tag", "")), trial.config.server_args
        )
    except ServetuneError:
        return None


def _keys(records: list[TrialRecord]) -> str:
    shown = [
        f"{record.key} (concurrency {record.results.get('max_concurrency')})"
        for record in records[:8]
    ]
    return ", ".join(shown) or "it has no trial that ended well under such a load"


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
