"""AWS's own benchmark jobs as a back end: created, watched, read, and recorded as trials.

A job is named by a digest of its request, so that the same command finds its own job again:
after Ctrl-C it waits on, after the end it reads the result without paying twice, and only
`--force` runs it anew. Each job writes below a prefix of its own.

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
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from servetune.deploy.aws.client import Boto3Client
from servetune.deploy.aws.job_archive import Level, levels_of, results_of
from servetune.deploy.names import require_name, require_role, require_secret
from servetune.errors import InputError, LoadError
from servetune.json_value import JsonMembers, JsonObject
from servetune.plan.plan import Plan
from servetune.store import (
    SCHEMA,
    Metadata,
    Results,
    TrialConfig,
    TrialRecord,
    now_utc,
    provenance,
    trial_key,
)
from servetune.workload import Workload
from servetune.workload.parts import Part

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

POLL_S = 30.0
ENDED = frozenset({"Completed", "Failed", "Stopped"})
_STATUSES = ENDED | {"InProgress", "Stopping"}

ARCHIVE = "output.tar.gz"

_BUCKET = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/\S*)?")

#: Samples of a length law from which its mean and standard deviation are computed.
DRAWS = 4096


class JobParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Load of a benchmark job, under the service's names.

    Attributes:
        prompt_input_tokens_mean: Mean length of prompts.
        prompt_input_tokens_stddev: Standard deviation of it.
        output_tokens_mean: Mean length of answers.
        output_tokens_stddev: Standard deviation of it.
        concurrency: Concurrent requests; several levels make a sweep within one job.
        request_count: Requests of each level.
        streaming: Whether answers are streamed.
        tokenizer: Hub id of the tokenizer that counts.
        extra_inputs: Members added to each request.
        random_seed: Seed of prompts and lengths.
    """

    prompt_input_tokens_mean: int
    prompt_input_tokens_stddev: int
    output_tokens_mean: int
    output_tokens_stddev: int
    concurrency: int | list[int]
    request_count: int
    streaming: bool
    tokenizer: str
    extra_inputs: str = "ignore_eos:true"
    random_seed: int = 42


class BenchmarkJob(msgspec.Struct, frozen=True, kw_only=True):
    """A benchmark job before it is created.

    Attributes:
        endpoint: Name of the endpoint.
        components: Components of the endpoint; an endpoint made of components must name them.
        parameters: Load of the job.
        concurrencies: Levels, all in one job.
        role_arn: Role that the job runs as.
        output: `s3://bucket/prefix`; the job's own name is put behind it.
        model: Model that is measured, and whose tokenizer counts.
        workload: Name of the workload, for the record.
        secret_arn: Secret with the hub's token, for a gated tokenizer.
    """

    endpoint: str
    components: tuple[str, ...] = ()
    parameters: JobParameters
    concurrencies: tuple[int, ...]
    role_arn: str
    output: str
    model: str
    workload: str = ""
    secret_arn: str | None = None

    def __post_init__(self) -> None:
        require_role(self.role_arn)
        if not _BUCKET.fullmatch(self.output):
            raise InputError(
                f"'{self.output}' names no S3 prefix", hint="such as s3://bucket/bench"
            )
        for name in (self.endpoint, *self.components):
            require_name(name)
        if not self.concurrencies or min(self.concurrencies) < 1:
            raise InputError("a job needs at least one concurrency, of 1 or more")
        if self.secret_arn is not None:
            require_secret(self.secret_arn, option="--secret-arn")

    def spec(self) -> JsonObject:
        """The workload as the service takes it."""
        secrets = {"hf_token": self.secret_arn}
        return {
            "benchmark": {"type": "aiperf"},
            "parameters": msgspec.to_builtins(self.parameters),
            "tooling": {"api_standard": "openai"},
            **({"secrets": secrets} if self.secret_arn else {}),
        }

    @property
    def name(self) -> str:
        """Name of job and workload: equal for equal requests, at most 63 characters."""
        held = [self.endpoint, self.components, self.spec(), self.output]
        digest = hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()[:10]
        stem = self.endpoint.removeprefix("servetune-")[:40].rstrip("-")
        return f"servetune-{stem}-{digest}"

    @property
    def prefix(self) -> str:
        """Prefix that this job alone writes below."""
        return f"{self.output.rstrip('/')}/{self.name}/"

    def workload_request(self) -> JsonObject:
        """Request of CreateAIWorkloadConfig."""
        return {
            "AIWorkloadConfigName": self.name,
            "AIWorkloadConfigs": {"WorkloadSpec": {"Inline": json.dumps(self.spec())}},
            "Tags": self._tags(),
        }

    def job_request(self) -> JsonObject:
        """Request of CreateAIBenchmarkJob."""
        endpoint: JsonObject = {"Identifier": self.endpoint}
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


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the service describes it.

    Attributes:
        name: Name of the job.
        status: Status in the service's words.
        reason: Reason of a failure.
        arn: ARN of the job.
        output: S3 prefix that it writes below.
    """

    name: str
    status: str
    reason: str = ""
    arn: str = ""
    output: str = ""

    @property
    def ended(self) -> bool:
        return self.status in ENDED


def job_parameters(
    workload: Workload,
    *,
    model: str,
    concurrencies: Sequence[int],
    request_count: int | None = None,
) -> tuple[JobParameters, tuple[str, ...]]:
    """A named workload in the service's parameters, and what those cannot express.

    The job makes prompts of its own from mean and deviation of their lengths; a mixture of parts
    becomes the mean and deviation of the mixture, and a conversation those of all its turns, each
    with the turns before it in its prompt.

    Raises:
        InputError: The workload is a data set.
    """
    input_mean, input_stddev = _moments(workload, "input_tokens")
    output_mean, output_stddev = _moments(workload, "output_tokens")
    levels = list(concurrencies)
    parameters = JobParameters(
        prompt_input_tokens_mean=round(input_mean),
        prompt_input_tokens_stddev=round(input_stddev),
        output_tokens_mean=round(output_mean),
        output_tokens_stddev=round(output_stddev),
        concurrency=levels if len(levels) > 1 else levels[0],
        request_count=request_count or workload.request_count,
        streaming=workload.stream,
        tokenizer=model,
    )
    return parameters, tuple(_unsupported(workload))


def _moments(workload: Workload, field: str) -> tuple[float, float]:
    """Mean and standard deviation of a length over all requests of all parts, by weight."""
    rng = np.random.default_rng(1)
    total = sum(part.weight for part in workload.parts)
    mean = square = 0.0
    for part in workload.parts:
        if getattr(part, field) is None:
            raise InputError(
                f"a job makes its own prompts, and workload {workload.name} is a data set",
                hint="bench it without --via-aws-job, or choose a workload with laws of lengths",
            )
        drawn = _drawn(part, field, rng)
        mean += part.weight / total * float(drawn.mean())
        square += part.weight / total * float((drawn**2).mean())
    return mean, max(0.0, square - mean**2) ** 0.5


def _drawn(
    part: Part, field: str, rng: np.random.Generator
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Lengths of requests of a part; prompts of a conversation hold all turns before them."""
    law = getattr(part, field)
    if part.sessions is None or field != "input_tokens":
        return np.asarray(law.draw(DRAWS, rng), dtype=np.float64)
    assert part.output_tokens is not None
    turns = part.sessions.turns.draw(DRAWS, rng).astype(np.int64)
    prompt = law.draw(DRAWS, rng).astype(np.float64)
    lengths = [prompt]
    for turn in range(1, int(turns.max())):
        answers, added = (
            each.draw(DRAWS, rng) for each in (part.output_tokens, part.sessions.turn_tokens)
        )
        prompt = prompt + answers + added
        lengths.append(prompt[turns > turn])
    return np.concatenate(lengths)


def _unsupported(workload: Workload) -> list[str]:
    lacking = {
        "shared prefixes": any(part.prefix for part in workload.parts),
        "documents": any(part.documents for part in workload.parts),
        "conversations (each turn is a prompt of its own)": any(
            part.sessions for part in workload.parts
        ),
        "tools": any(part.tools for part in workload.parts),
        "images": any(part.images for part in workload.parts),
        "adapters": bool(workload.adapters),
    }
    names = [name for name, there in lacking.items() if there]
    if not names:
        return []
    return [f"the job's synthetic prompts have no {', '.join(names)}: expect other figures"]


def start(
    client: Boto3Client, job: BenchmarkJob, *, force: bool = False, poll_s: float = POLL_S
) -> bool:
    """Create the workload and the job, unless they are there; whether a job was created.

    Args:
        client: boto3's for `sagemaker`.
        job: The job.
        force: Whether an earlier job of this name is deleted first, whatever its state.
        poll_s: Time between looks at a job that has to stop before that.

    Raises:
        LoadError: The service refuses.
    """
    if force:
        clean(client, job.name, poll_s=poll_s)
    is_new = _created(client, "CreateAIWorkloadConfig", job.workload_request())
    try:
        return _created(client, "CreateAIBenchmarkJob", job.job_request())
    except LoadError:
        if is_new:  # nobody would look for a workload without its job
            with contextlib.suppress(LoadError):
                _changed(client, "DeleteAIWorkloadConfig", AIWorkloadConfigName=job.name)
        raise


def _created(client: Boto3Client, operation: str, request: JsonObject) -> bool:
    """Whether a resource was created that was not there."""
    return _called(client, operation, absent="ResourceInUse", **request) is not None


def _changed(client: Boto3Client, operation: str, **request: str) -> bool:
    """Whether there was a resource that could be changed."""
    return _called(client, operation, absent="ResourceNotFound", **request) is not None


def describe(client: Boto3Client, name: str) -> JobStatus | None:
    """The job as it is; `None` where there is none.

    Raises:
        LoadError: The service refuses, or answers with a status that it does not have.
    """
    answer = _called(
        client, "DescribeAIBenchmarkJob", absent="ResourceNotFound", AIBenchmarkJobName=name
    )
    if answer is None:
        return None
    status = answer["AIBenchmarkJobStatus"]
    if status not in _STATUSES:
        raise LoadError(f"job {name} has the status '{status}', which is not known")
    return JobStatus(
        name=name,
        status=status,
        reason=answer.get("FailureReason", ""),
        arn=answer.get("AIBenchmarkJobArn", ""),
        output=answer.get("OutputConfig", {}).get("S3OutputLocation", ""),
    )


def wait(
    client: Boto3Client,
    name: str,
    *,
    on_status: Callable[[JobStatus, float], None] = lambda _described, _waited_s: None,
    limit_s: float = 6 * 3600.0,
    poll_s: float = POLL_S,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> JobStatus:
    """Wait until a job has ended well.

    Ctrl-C leaves the job as it is; the same command finds it again. A description that is
    throttled is repeated at the next turn.

    Raises:
        LoadError: It failed, was stopped, is gone, or the limit is over.
    """
    begun_s = now_s()
    while True:
        described = _status_unless_throttled(client, name)
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
                hint="the job goes on: repeat the command to wait, or delete it with --clean",
            )
        sleep(poll_s)


def _status_unless_throttled(client: Boto3Client, name: str) -> JobStatus | None:
    """The status of the job; `None` where the service throttled the request."""
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
    client: Boto3Client,
    name: str,
    *,
    sleep: Callable[[float], None] = time.sleep,
    limit_s: float = 900.0,
    poll_s: float = POLL_S / 3,
) -> list[str]:
    """Delete job and workload, the job first and only once it has stopped; the deleted names.

    Raises:
        LoadError: The service refuses, or the job does not stop in time.
    """
    taken = []
    described = describe(client, name)
    waited_s = 0.0
    while described is not None and not described.ended:
        if described.status == "InProgress":
            _changed(client, "StopAIBenchmarkJob", AIBenchmarkJobName=name)
        if waited_s >= limit_s:
            raise LoadError(f"job {name} is still {described.status} after {waited_s:.0f} s")
        sleep(poll_s)
        waited_s += poll_s
        described = describe(client, name)
    if described is not None and _changed(client, "DeleteAIBenchmarkJob", AIBenchmarkJobName=name):
        taken.append(f"job {name}")
    if _changed(client, "DeleteAIWorkloadConfig", AIWorkloadConfigName=name):
        taken.append(f"workload {name}")
    return taken


def require_bucket(s3: Boto3Client, output: str) -> str:
    """Refuse a job whose results would have no bucket; it would be found out when all is paid.

    Returns:
        A note where the bucket may not be looked at; empty for one that is there.

    Raises:
        LoadError: There is no such bucket.
    """
    from botocore.exceptions import ClientError

    bucket = output.removeprefix("s3://").partition("/")[0]
    try:
        s3.head_bucket(Bucket=bucket)
    except ClientError as error:
        if _code(error) in ("404", "NoSuchBucket"):
            raise LoadError(
                f"there is no bucket '{bucket}' for the job's results",
                hint=f"make it (aws s3 mb s3://{bucket}), or give another --output-s3",
            ) from None
        return f"bucket '{bucket}' may not be looked at ({_code(error)}); the job's role writes it"
    return ""


def fetch_archive(s3: Boto3Client, output: str) -> bytes:
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


def trials_of(job: BenchmarkJob, archive: bytes, *, arn: str = "") -> list[TrialRecord]:
    """A record for each level, as a measured trial has it.

    Raises:
        LoadError: The archive is not whole.
    """
    return [_trial(job, level, arn) for level in levels_of(archive, job.concurrencies)]


def _trial(job: BenchmarkJob, level: Level, arn: str) -> TrialRecord:
    parameters = job.parameters
    client_args = {
        "workload": job.workload,
        "max_concurrency": level.concurrency,
        "num_prompts": parameters.request_count,
        "dataset_name": "aws-synthetic",
        "member": level.member,
    }
    target = "/".join(("sagemaker:", job.endpoint, *job.components))
    results = results_of(level)
    completed = results.get("completed")
    return TrialRecord(
        servetune_schema=SCHEMA,
        key=trial_key(
            model=job.model,
            engine="external",
            server_args={"url": target},
            client_args=client_args,
        ),
        status="failed" if completed == 0 else "ok",
        config=TrialConfig(client_args=client_args),
        results=Results(results),
        metadata=Metadata(
            {
                "gpu_type": "unknown",
                "gpu_count": None,
                "model_tag": job.model,
                "framework": "external",
                "measured_by": "AWS AI benchmark job",
                "job": job.name,
                "job_arn": arn,
                "urls": [target],
                "input_tokens": parameters.prompt_input_tokens_mean,
                "output_tokens": parameters.output_tokens_mean,
                "seed": parameters.random_seed,
                **({"search_boundary": level.boundary} if level.boundary is not None else {}),
            }
        ),
        provenance=provenance(
            started_at=now_utc(), seed=parameters.random_seed, engine_version=None
        ),
    )


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
    client: Boto3Client,
    name: str,
    *,
    model: str,
    plan_of: Callable[[str, Mapping[str, str]], Plan],
) -> list[TrialRecord]:
    """Proposals of a recommendation job, as candidates with their expected performance.

    An expectation is no measurement: the records say that they are simulated, and by whom.

    Args:
        client: boto3's for `sagemaker`.
        name: Name of the job.
        model: Hub id, for Plans whose environment names only a folder.
        plan_of: Function from an image and its environment to the Plan that they serve.

    Raises:
        LoadError: The job is not there, has not ended well, or recommends nothing.
    """
    answer = _called(client, "DescribeAIRecommendationJob", absent="", AIRecommendationJobName=name)
    assert answer is not None
    status = answer["AIRecommendationJobStatus"]
    if status != "Completed":
        reason = answer.get("FailureReason")
        raise LoadError(
            f"recommendation job {name} is {status}{f': {reason}' if reason else ''}",
            hint="import it once it has completed",
        )
    rows = answer.get("Recommendations") or []
    if not rows:
        raise LoadError(f"recommendation job {name} completed and recommends nothing")
    return [_recommended(row, f"{name}/{place}", model, plan_of) for place, row in enumerate(rows)]


def _recommended(
    row: JsonMembers,
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
        results=Results(_expected_results(expected)),
        metadata=Metadata(
            {
                "gpu_type": "unknown",
                "gpu_count": plan.device_count,
                "model_tag": model,
                "framework": plan.engine,
                "instance_type": deployed.get("InstanceType"),
                "instance_count": deployed.get("InstanceCount"),
                "expected_by": f"AWS recommendation job {place}",
                "expected_performance": expected,
                "optimizations": [
                    detail.get("OptimizationType")
                    for detail in row.get("OptimizationDetails") or ()
                ],
                "description": row.get("RecommendationDescription", ""),
                "image": deployed.get("ImageUri", ""),
            }
        ),
    )


def _expected_results(expected: Sequence[JsonMembers]) -> JsonObject:
    """Those expectations whose metric and value can be read; the others stay in the metadata."""
    results: JsonObject = {"backend": "aws-recommendation"}
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


def _called(
    client: Boto3Client, operation: str, /, *, absent: str, **request: object
) -> JsonObject | None:
    """The answer of an operation; `None` for the error code that is no failure.

    Raises:
        LoadError: The service refuses.
    """
    from botocore import xform_name
    from botocore.exceptions import ClientError

    try:
        return getattr(client, xform_name(operation))(**request) or {}
    except ClientError as error:
        if _code(error) == absent:
            return None
        raise _refused(operation, error) from None


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _refused(operation: str, error: ClientError) -> LoadError:
    words = error.response.get("Error", {}).get("Message", "") or str(error)
    hint = "this endpoint is made of components: name one with --component"
    return LoadError(
        f"{operation} was refused: {_code(error)}: {words}",
        hint=hint if "inference component name" in words.lower() else "",
    )
