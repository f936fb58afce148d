"""AWS's own benchmark jobs as a back end: asked, waited for, read, and remembered as trials.

A job is named by what it is asked, so that the same command finds its own job again: after
Ctrl-C it waits on, after the end it reads the result without paying twice, and only `--force`
runs it anew. Each job writes below a prefix of its own.

Every operation and field is of botocore 1.44.5's model of SageMaker; the workload's parameters
are those of AWS's documentation of AI workloads, read in November 2026. Statuses are InProgress,
Completed, Failed, Stopping and Stopped, and no others.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from servetune.errors import InputError, LoadError
from servetune.plan.plan import Plan
from servetune.store import SCHEMA, TrialConfig, TrialRecord, now_utc, provenance, trial_key
from servetune.trials.aws_archive import Level, levels_of, results_of
from servetune.workload.traffic import Traffic

__all__ = [
    "ENDED",
    "Asked",
    "Described",
    "clean",
    "describe",
    "fetch_archive",
    "recommended_trials",
    "start",
    "trials_of",
    "wait",
    "workload_spec",
]

POLL_S = 30.0
ENDED = frozenset({"Completed", "Failed", "Stopped"})
_STATUSES = ENDED | {"InProgress", "Stopping"}

ARCHIVE = "output.tar.gz"

_ROLE = re.compile(r"arn:aws[a-z\-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+")
_SECRET = re.compile(r"arn:aws[a-z\-]*:secretsmanager:[a-z0-9-]+:\d{12}:secret:\S+")
_BUCKET = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/\S*)?")
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")

#: Draws of a law that give the mean and deviation that a job is told.
DRAWS = 4096


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A benchmark job before it is one.

    Attributes:
        endpoint: Its name.
        components: Of the endpoint; an endpoint made of components must name them.
        spec: The workload's, as the service takes it.
        concurrencies: The levels, all in one job.
        role_arn: That the job runs as.
        output: `s3://bucket/prefix`; the job's own name is put behind it.
        model: That is asked, and whose tokenizer counts.
        workload: Its name, for the record.
    """

    endpoint: str
    components: tuple[str, ...] = ()
    spec: dict[str, Any]
    concurrencies: tuple[int, ...]
    role_arn: str
    output: str
    model: str
    workload: str = ""

    def __post_init__(self) -> None:
        if not _ROLE.fullmatch(self.role_arn):
            raise InputError(
                f"'{self.role_arn}' is not the ARN of a role",
                hint="it looks like arn:aws:iam::123456789012:role/SageMakerExecution",
            )
        if not _BUCKET.fullmatch(self.output):
            raise InputError(
                f"'{self.output}' names no S3 prefix", hint="such as s3://bucket/bench"
            )
        for name in (self.endpoint, *self.components):
            if not _NAME.fullmatch(name):
                raise InputError(f"'{name}' is not a name that SageMaker takes")
        if not self.concurrencies or min(self.concurrencies) < 1:
            raise InputError("a job needs at least one concurrency, of 1 or more")

    @property
    def name(self) -> str:
        """Of job and workload: equal for equal questions, at most 63 characters."""
        said = [self.endpoint, self.components, self.spec, self.output]
        digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:10]
        stem = self.endpoint.removeprefix("servetune-")[:40].rstrip("-")
        return f"servetune-{stem}-{digest}"

    @property
    def prefix(self) -> str:
        """Where this job alone writes."""
        return f"{self.output.rstrip('/')}/{self.name}/"

    def workload_request(self) -> dict[str, Any]:
        """Of CreateAIWorkloadConfig."""
        return {
            "AIWorkloadConfigName": self.name,
            "AIWorkloadConfigs": {"WorkloadSpec": {"Inline": json.dumps(self.spec)}},
            "Tags": self._tags(),
        }

    def job_request(self) -> dict[str, Any]:
        """Of CreateAIBenchmarkJob."""
        endpoint: dict[str, Any] = {"Identifier": self.endpoint}
        if self.components:
            endpoint["InferenceComponents"] = [{"Identifier": one} for one in self.components]
        return {
            "AIBenchmarkJobName": self.name,
            "BenchmarkTarget": {"Endpoint": endpoint},
            "OutputConfig": {"S3OutputLocation": self.prefix},
            "AIWorkloadConfigIdentifier": self.name,
            "RoleArn": self.role_arn,
            "Tags": self._tags(),
        }

    def _tags(self) -> list[dict[str, str]]:
        return [{"Key": "servetune:endpoint", "Value": self.endpoint}]


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the service describes it."""

    name: str
    status: str
    reason: str = ""
    arn: str = ""
    output: str = ""

    @property
    def ended(self) -> bool:
        return self.status in ENDED


# what is asked


def workload_spec(
    traffic: Traffic,
    *,
    model: str,
    concurrencies: Sequence[int],
    request_count: int | None = None,
    secret_arn: str | None = None,
    seed: int = 42,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A named workload in the service's parameters, and what those cannot say.

    The job makes prompts of its own from mean and deviation of their lengths; a mixture of parts
    becomes the mean and deviation of the mixture.

    Raises:
        InputError: The secret is no ARN of Secrets Manager, or the workload is a data set.
    """
    if secret_arn is not None and not _SECRET.fullmatch(secret_arn):
        raise InputError(
            "the tokenizer's token must be named by its ARN in Secrets Manager",
            hint="such as arn:aws:secretsmanager:us-east-1:123456789012:secret:hf-token-AbCdEf",
        )
    lengths = [_moments(traffic, field) for field in ("input_tokens", "output_tokens")]
    (input_mean, input_std), (output_mean, output_std) = lengths
    levels = list(concurrencies)
    parameters: dict[str, Any] = {
        "prompt_input_tokens_mean": round(input_mean),
        "prompt_input_tokens_stddev": round(input_std),
        "output_tokens_mean": round(output_mean),
        "output_tokens_stddev": round(output_std),
        "concurrency": levels if len(levels) > 1 else levels[0],
        "request_count": request_count or traffic.request_count,
        "streaming": traffic.stream,
        "tokenizer": model,
        "extra_inputs": "ignore_eos:true",
        "random_seed": seed,
    }
    spec: dict[str, Any] = {
        "benchmark": {"type": "aiperf"},
        "parameters": parameters,
        "tooling": {"api_standard": "openai"},
    }
    if secret_arn is not None:
        spec["secrets"] = {"hf_token": secret_arn}
    return spec, tuple(_unsaid(traffic))


def _moments(traffic: Traffic, field: str) -> tuple[float, float]:
    """Mean and standard deviation over all parts, each as often as its weight says."""
    rng = np.random.default_rng(1)
    total = sum(part.weight for part in traffic.parts)
    mean = square = 0.0
    for part in traffic.parts:
        law = getattr(part, field)
        if law is None:
            raise InputError(
                f"a job makes its own prompts, and workload {traffic.name} is a data set",
                hint="bench it without --via-aws-job, or choose a workload with laws of lengths",
            )
        drawn = law.draw(DRAWS, rng).astype(np.float64)
        mean += part.weight / total * float(drawn.mean())
        square += part.weight / total * float((drawn**2).mean())
    return mean, max(0.0, square - mean**2) ** 0.5


def _unsaid(traffic: Traffic) -> list[str]:
    lacking = {
        "shared prefixes": any(part.prefix for part in traffic.parts),
        "documents": any(part.documents for part in traffic.parts),
        "conversations": any(part.sessions for part in traffic.parts),
        "tools": any(part.tools for part in traffic.parts),
        "images": any(part.images for part in traffic.parts),
        "adapters": bool(traffic.adapters),
    }
    names = [name for name, there in lacking.items() if there]
    if not names:
        return []
    return [f"the job's synthetic prompts have no {', '.join(names)}: expect other figures"]


# the job


def start(client: Any, asked: Asked, *, force: bool = False, poll_s: float = POLL_S) -> bool:
    """Create the workload and the job, unless they are there; whether a job was created.

    Args:
        client: boto3's for `sagemaker`.
        asked: What is asked.
        force: Take an earlier job of this name away first, whatever its state.
        poll_s: Between looks at a job that has to stop before that.

    Raises:
        LoadError: The service refuses.
    """
    if force:
        clean(client, asked.name, poll_s=poll_s)
    is_new = _create(client, "CreateAIWorkloadConfig", asked.workload_request())
    try:
        return _create(client, "CreateAIBenchmarkJob", asked.job_request())
    except LoadError:
        if is_new:  # nobody would look for a workload without its job
            with contextlib.suppress(LoadError):
                _call(client.delete_ai_workload_config, AIWorkloadConfigName=asked.name)
        raise


def describe(client: Any, name: str) -> Described | None:
    """The job as it is; `None` where there is none.

    Raises:
        LoadError: The service refuses, or says a status that it does not have.
    """
    from botocore.exceptions import ClientError

    try:
        said = client.describe_ai_benchmark_job(AIBenchmarkJobName=name)
    except ClientError as error:
        if _code(error) == "ResourceNotFound":
            return None
        raise _refused("DescribeAIBenchmarkJob", error) from None
    status = said["AIBenchmarkJobStatus"]
    if status not in _STATUSES:
        raise LoadError(f"job {name} has the status '{status}', which is in no table of ours")
    return Described(
        name=name,
        status=status,
        reason=said.get("FailureReason", ""),
        arn=said.get("AIBenchmarkJobArn", ""),
        output=said.get("OutputConfig", {}).get("S3OutputLocation", ""),
    )


def wait(
    client: Any,
    name: str,
    *,
    on_status: Callable[[Described, float], None] = lambda _described, _waited_s: None,
    limit_s: float = 6 * 3600.0,
    poll_s: float = POLL_S,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Described:
    """Wait until a job has ended well.

    Ctrl-C leaves the job as it is; the same command finds it again. A description that is
    throttled is asked for again at the next turn.

    Raises:
        LoadError: It failed, was stopped, is gone, or the limit is over.
    """
    begun_s = now_s()
    while True:
        described = _described_patiently(client, name)
        waited_s = now_s() - begun_s
        if described is not None:
            on_status(described, waited_s)
            if described.status == "Completed":
                return described
            if described.status == "Failed":
                raise LoadError(f"job {name} failed: {described.reason or 'no reason is given'}")
            if described.status == "Stopped":
                raise LoadError(f"job {name} was stopped", hint="--force runs it anew")
        if waited_s >= limit_s:
            raise LoadError(
                f"job {name} has not ended after {waited_s / 3600:.1f} h",
                hint="it goes on: the same command waits on, --clean takes it away",
            )
        sleep(poll_s)


def _described_patiently(client: Any, name: str) -> Described | None:
    """`None` where the service had no time for the question."""
    try:
        described = describe(client, name)
    except LoadError as error:
        if "Throttling" in error.message or "TooManyRequests" in error.message:
            return None
        raise
    if described is None:
        raise LoadError(f"there is no job {name}", hint="run without --status to create it")
    return described


def clean(
    client: Any,
    name: str,
    *,
    sleep: Callable[[float], None] = time.sleep,
    limit_s: float = 900.0,
    poll_s: float = POLL_S / 3,
) -> list[str]:
    """Take job and workload away, the job first and only once it has stopped; what was taken.

    Raises:
        LoadError: The service refuses, or the job does not stop in time.
    """
    taken = []
    described = describe(client, name)
    waited_s = 0.0
    while described is not None and not described.ended:
        if described.status == "InProgress":
            _call(client.stop_ai_benchmark_job, AIBenchmarkJobName=name)
        if waited_s >= limit_s:
            raise LoadError(f"job {name} is still {described.status} after {waited_s:.0f} s")
        sleep(poll_s)
        waited_s += poll_s
        described = describe(client, name)
    if described is not None and _call(client.delete_ai_benchmark_job, AIBenchmarkJobName=name):
        taken.append(f"job {name}")
    if _call(client.delete_ai_workload_config, AIWorkloadConfigName=name):
        taken.append(f"workload {name}")
    return taken


# the result


def fetch_archive(s3: Any, output: str) -> bytes:
    """The one archive below a job's own prefix.

    Raises:
        LoadError: There is none, or more than one, or it cannot be read.
    """
    from botocore.exceptions import ClientError

    bucket, _, prefix = output.removeprefix("s3://").partition("/")
    keys: list[str] = []
    token: dict[str, str] = {}
    try:
        while True:
            page = s3.list_objects_v2(Bucket=bucket, Prefix=prefix, **token)
            keys += [item["Key"] for item in page.get("Contents", ())]
            if not page.get("IsTruncated"):
                break
            token = {"ContinuationToken": page["NextContinuationToken"]}
        found = [key for key in keys if key.rpartition("/")[2] == ARCHIVE]
        if len(found) != 1:
            what = "no" if not found else f"{len(found)}"
            raise LoadError(
                f"the job completed and left {what} {ARCHIVE} below {output}",
                hint="its log says why; --force runs it anew"
                if not found
                else "each job writes below a prefix of its own: choose another --output-s3",
            )
        body: bytes = s3.get_object(Bucket=bucket, Key=found[0])["Body"].read()
    except ClientError as error:
        raise _refused("S3", error) from None
    return body


def trials_of(asked: Asked, archive: bytes, *, arn: str = "") -> list[TrialRecord]:
    """A record for each level, as a measured trial has it.

    Raises:
        LoadError: The archive is not whole.
    """
    return [_trial(asked, level, arn) for level in levels_of(archive, asked.concurrencies)]


def _trial(asked: Asked, level: Level, arn: str) -> TrialRecord:
    parameters = asked.spec["parameters"]
    client_args = {
        "workload": asked.workload,
        "max_concurrency": level.concurrency,
        "num_prompts": parameters["request_count"],
        "dataset_name": "aws-synthetic",
        "member": level.member,
    }
    target = "/".join(("sagemaker:", asked.endpoint, *asked.components))
    results = results_of(level)
    completed = results.get("completed")
    return TrialRecord(
        servetune_schema=SCHEMA,
        key=trial_key(
            model=asked.model,
            engine="external",
            server_args={"url": target},
            client_args=client_args,
        ),
        status="failed" if completed == 0 else "ok",
        config=TrialConfig(client_args=client_args),
        results=results,
        metadata={
            "gpu_type": "unknown",
            "gpu_count": None,
            "model_tag": asked.model,
            "framework": "external",
            "measured_by": "AWS AI benchmark job",
            "job": asked.name,
            "job_arn": arn,
            "urls": [target],
            "input_tokens": parameters["prompt_input_tokens_mean"],
            "output_tokens": parameters["output_tokens_mean"],
            "seed": parameters["random_seed"],
            **({"search_boundary": level.boundary} if level.boundary is not None else {}),
        },
        provenance=provenance(
            started_at=now_utc(), seed=parameters["random_seed"], engine_version=None
        ),
    )


# recommendations

#: Metrics of PerformanceTarget and of aiperf, under which an expectation may come.
_EXPECTED: Mapping[str, tuple[str, float]] = {
    "ttft-ms": ("ttft_ms", 1.0),
    "time_to_first_token": ("ttft_ms", 1.0),
    "inter_token_latency": ("tpot_ms", 1.0),
    "request_latency": ("e2e_latency_ms", 1.0),
    "throughput": ("output_throughput", 1.0),
    "output_token_throughput": ("output_throughput", 1.0),
    "request_throughput": ("request_throughput", 1.0),
}
_STATS: Mapping[str, str] = {"avg": "mean", "mean": "mean", "p50": "median", "": "mean"}


def recommended_trials(
    client: Any,
    name: str,
    *,
    model: str,
    plan_of: Callable[[str, Mapping[str, str]], Plan],
) -> list[TrialRecord]:
    """What a recommendation job proposes, as candidates with their expected performance.

    An expectation is no measurement: the records say that they are simulated, and by whom.

    Args:
        client: boto3's for `sagemaker`.
        name: Of the job.
        model: Hub id, for Plans whose environment names only a folder.
        plan_of: From an image and its environment to the Plan that they serve.

    Raises:
        LoadError: The job is not there, has not ended well, or recommends nothing.
    """
    from botocore.exceptions import ClientError

    try:
        said = client.describe_ai_recommendation_job(AIRecommendationJobName=name)
    except ClientError as error:
        raise _refused("DescribeAIRecommendationJob", error) from None
    status = said["AIRecommendationJobStatus"]
    if status != "Completed":
        reason = said.get("FailureReason")
        raise LoadError(
            f"recommendation job {name} is {status}{f': {reason}' if reason else ''}",
            hint="import it once it has completed",
        )
    rows = said.get("Recommendations") or []
    if not rows:
        raise LoadError(f"recommendation job {name} completed and recommends nothing")
    return [_recommended(row, f"{name}/{place}", model, plan_of) for place, row in enumerate(rows)]


def _recommended(
    row: Mapping[str, Any],
    place: str,
    model: str,
    plan_of: Callable[[str, Mapping[str, str]], Plan],
) -> TrialRecord:
    deployed = row.get("DeploymentConfiguration") or {}
    environment = dict(deployed.get("EnvironmentVariables") or {})
    plan = msgspec.structs.replace(plan_of(deployed.get("ImageUri", ""), environment), model=model)
    copies = (deployed.get("CopyCountPerInstance") or 1) * (deployed.get("InstanceCount") or 1)
    plan = msgspec.structs.replace(plan, replicas=max(plan.replicas, copies))
    expected = row.get("ExpectedPerformance") or []
    server_args = {"place": place, "plan": plan.label}
    return TrialRecord(
        servetune_schema=SCHEMA,
        key=trial_key(model=model, engine=plan.engine, server_args=server_args, client_args={}),
        simulated=True,
        plan=plan,
        config=TrialConfig(server_args={"plan": plan.label}),
        results=_expected_results(expected),
        metadata={
            "gpu_type": "unknown",
            "gpu_count": plan.device_count,
            "model_tag": model,
            "framework": plan.engine,
            "instance_type": deployed.get("InstanceType"),
            "instance_count": deployed.get("InstanceCount"),
            "expected_by": f"AWS recommendation job {place}",
            "expected_performance": expected,
            "optimizations": [
                detail.get("OptimizationType") for detail in row.get("OptimizationDetails") or ()
            ],
            "description": row.get("RecommendationDescription", ""),
            "image": deployed.get("ImageUri", ""),
        },
    )


def _expected_results(expected: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Those expectations whose metric and value can be read; the others stay in the metadata."""
    results: dict[str, Any] = {"backend": "aws-recommendation"}
    for row in expected:
        name = str(row.get("Metric", "")).lower()
        if name not in _EXPECTED:
            continue
        try:
            value = float(row.get("Value", ""))
        except ValueError:
            continue
        ours, factor = _EXPECTED[name]
        stat = str(row.get("Stat") or "").lower()
        field = ours
        if ours.endswith("_ms"):
            field = f"{_STATS.get(stat, stat)}_{ours}"
            factor = 1e3 if str(row.get("Unit", "")).lower() in {"s", "seconds"} else factor
        results[field] = value * factor
    return results


# calls


def _create(client: Any, operation: str, request: dict[str, Any]) -> bool:
    """Whether something was created that was not there."""
    from botocore import xform_name
    from botocore.exceptions import ClientError

    try:
        getattr(client, xform_name(operation))(**request)
    except ClientError as error:
        if _code(error) == "ResourceInUse":
            return False
        raise _refused(operation, error) from None
    return True


def _call(operation: Callable[..., Any], **request: Any) -> bool:
    """Whether there was something that it could be done to."""
    from botocore.exceptions import ClientError

    try:
        operation(**request)
    except ClientError as error:
        if _code(error) == "ResourceNotFound":
            return False
        raise _refused(operation.__name__, error) from None
    return True


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _refused(operation: str, error: Any) -> LoadError:
    words = error.response.get("Error", {}).get("Message", "") or str(error)
    hint = "this endpoint is made of components: name one with --component"
    return LoadError(
        f"{operation} was refused: {_code(error)}: {words}",
        hint=hint if "inference component name" in words.lower() else "",
    )
