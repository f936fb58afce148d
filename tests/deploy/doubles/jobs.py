"""SageMaker's AI jobs: workloads, benchmark jobs that write an archive, recommendations.

Statuses are those of the service's model and no others: InProgress, Completed, Failed,
Stopping, Stopped. A job's state is a function of the clock; when it has run for long enough it
writes its archive to the bucket that it was given, or does the fault it was told.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from typing import Any

from doubles.control import ACCOUNT, ControlPlane, Refusal
from doubles.s3 import ObjectStore

Request = dict[str, Any]

ARN = f"arn:aws:sagemaker:us-east-1:{ACCOUNT}"
EXPORT = "profile_export_aiperf.json"
#: Top-level keys of a workload's specification; the service refuses others.
SPEC_KEYS = frozenset({"benchmark", "parameters", "secrets", "tooling"})


class AiJobs:
    """The jobs.

    Attributes:
        job_s: How long one runs.
        fault: What a job created from now on does: `failed`, `stopped`, `no_object`,
            `truncated`, `lacks_level`, or nothing.
        workloads: Name -> specification.
        jobs: Name -> what was asked, since when, and how it stands.
        recommendations: Name -> what DescribeAIRecommendationJob says beside its request.
    """

    def __init__(
        self, control: ControlPlane, s3: ObjectStore, is_serving: Callable[[str, str | None], str]
    ) -> None:
        self.control, self.s3, self.is_serving = control, s3, is_serving
        self.job_s = 300.0
        self.fault = ""
        self.workloads: dict[str, Request] = {}
        self.jobs: dict[str, Request] = {}
        self.recommendations: dict[str, Request] = {}

    def create_ai_workload_config(self, request: Request) -> Request:
        name = request["AIWorkloadConfigName"]
        if name in self.workloads:
            raise Refusal("ResourceInUse", f"{name} exists")
        spec = json.loads(request["AIWorkloadConfigs"]["WorkloadSpec"]["Inline"])
        if unknown := set(spec) - SPEC_KEYS:
            raise Refusal("ValidationException", f"Unknown keys in workload: {sorted(unknown)}")
        self.workloads[name] = spec
        return {"AIWorkloadConfigArn": f"{ARN}:ai-workload-config/{name}"}

    def delete_ai_workload_config(self, request: Request) -> Request:
        name = request["AIWorkloadConfigName"]
        used = [job for job, held in self.jobs.items() if held["asked"][WORKLOAD] == name]
        if used:
            raise Refusal("ResourceInUse", f"{name} is used by {used[0]}")
        if self.workloads.pop(name, None) is None:
            raise Refusal("ResourceNotFound", "no such workload config")
        return {"AIWorkloadConfigArn": f"{ARN}:ai-workload-config/{name}"}

    def create_ai_benchmark_job(self, request: Request) -> Request:
        name = request["AIBenchmarkJobName"]
        if name in self.jobs:
            raise Refusal("ResourceInUse", f"{name} exists")
        if request[WORKLOAD] not in self.workloads:
            raise Refusal("ResourceNotFound", "no such workload config")
        target = request["BenchmarkTarget"]["Endpoint"]
        for component in target.get("InferenceComponents") or [{"Identifier": None}]:
            wrong = self.is_serving(target["Identifier"], component["Identifier"])
            if wrong:
                raise Refusal("ValidationException", wrong)
        asked = {key: value for key, value in request.items() if key != "Tags"}
        self.jobs[name] = {
            "asked": asked, "since": self.control.now_s(), "status": "InProgress",
            "fault": self.fault,
        }  # fmt: skip
        return {"AIBenchmarkJobArn": f"{ARN}:ai-benchmark-job/{name}"}

    def describe_ai_benchmark_job(self, request: Request) -> Request:
        name = request["AIBenchmarkJobName"]
        job = self._job(name)
        if job["status"] == "Stopping":
            job["status"] = "Stopped"
        elif job["status"] == "InProgress" and self._is_over(job):
            self._end(job)
        answer = {
            **job["asked"],
            "AIBenchmarkJobArn": f"{ARN}:ai-benchmark-job/{name}",
            "AIBenchmarkJobStatus": job["status"],
            "CreationTime": job["since"],
        }
        if job["status"] == "Failed":
            answer["FailureReason"] = "the endpoint did not answer"
        return answer

    def stop_ai_benchmark_job(self, request: Request) -> Request:
        job = self._job(request["AIBenchmarkJobName"])
        if job["status"] == "InProgress":
            job["status"] = "Stopping"
        return {"AIBenchmarkJobArn": f"{ARN}:ai-benchmark-job/x"}

    def delete_ai_benchmark_job(self, request: Request) -> Request:
        job = self._job(request["AIBenchmarkJobName"])
        if job["status"] in {"InProgress", "Stopping"}:
            raise Refusal("ResourceInUse", "the job runs")
        del self.jobs[request["AIBenchmarkJobName"]]
        return {"AIBenchmarkJobArn": f"{ARN}:ai-benchmark-job/x"}

    def describe_ai_recommendation_job(self, request: Request) -> Request:
        name = request["AIRecommendationJobName"]
        if name not in self.recommendations:
            raise Refusal("ResourceNotFound", f"no job {name}")
        return {
            "AIRecommendationJobName": name,
            "AIRecommendationJobArn": f"{ARN}:ai-recommendation-job/{name}",
            "ModelSource": {"S3": {"S3Uri": "s3://bucket/m/"}},
            "OutputConfig": {"S3OutputLocation": "s3://bucket/o/"},
            WORKLOAD: "w",
            "RoleArn": f"arn:aws:iam::{ACCOUNT}:role/sm",
            "CreationTime": self.control.now_s(),
            **self.recommendations[name],
        }

    def _job(self, name: str) -> Request:
        if name not in self.jobs:
            raise Refusal("ResourceNotFound", f"no job {name}")
        return self.jobs[name]

    def _is_over(self, job: Request) -> bool:
        return bool(self.control.now_s() - job["since"] >= self.job_s)

    def _end(self, job: Request) -> None:
        fault = job["fault"]
        if fault in {"failed", "stopped"}:
            job["status"] = fault.capitalize()
            return
        job["status"] = "Completed"
        if fault == "no_object":
            return
        levels = self.workloads[job["asked"][WORKLOAD]]["parameters"]["concurrency"]
        if isinstance(levels, list):
            members = {f"concurrency_{level}/{EXPORT}": export(level) for level in levels}
            if fault == "lacks_level":
                members.popitem()
        else:
            members = {EXPORT: export(levels)}
        raw = archive(members)
        where = job["asked"]["OutputConfig"]["S3OutputLocation"]
        bucket, _, prefix = where.removeprefix("s3://").partition("/")
        whole = raw[: len(raw) // 2] if fault == "truncated" else raw
        self.s3.put(bucket, f"{prefix}run-1/output.tar.gz", whole)


WORKLOAD = "AIWorkloadConfigIdentifier"


def export(concurrency: int, *, failed: int = 0, std: str = "std") -> dict[str, Any]:
    """aiperf's metrics of one level, figures that a test can tell apart."""
    slow = 40.0 + concurrency
    statistics = {"avg": slow, "p50": slow - 1, "p90": slow + 5, "p99": slow + 9, std: 2.0}
    return {
        "time_to_first_token": {"unit": "ms", **statistics},
        "inter_token_latency": {"unit": "ms", "avg": 8.0, "p99": 12.0},
        "request_latency": {"unit": "sec", "avg": 1.5, "p99": 2.0},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 100.0 * concurrency},
        "request_throughput": {"unit": "requests/sec", "avg": 0.9 * concurrency},
        "request_count": {"unit": "requests", "avg": 100.0 - failed},
        "error_request_count": {"unit": "requests", "avg": float(failed)},
        "input_sequence_length": {"unit": "tokens", "avg": 550.0},
        "output_sequence_length": {"unit": "tokens", "avg": 150.0},
        "benchmark_duration": {"unit": "sec", "avg": 60.0},
    }


def archive(members: dict[str, Any]) -> bytes:
    """A gzipped tar of JSON values, or of bytes as they are."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, value in members.items():
            raw = value if isinstance(value, bytes) else json.dumps(value).encode()
            member = tarfile.TarInfo(name)
            member.size = len(raw)
            tar.addfile(member, io.BytesIO(raw))
    return buffer.getvalue()
