"""A double of SageMaker's AI jobs and of a bucket, over HTTP, for the real boto3.

Requests are held against botocore's own model; answers have what the model requires. A job
takes as many descriptions as it is told to before it ends, and then writes its archive, or does
whatever fault it was given.
"""

from __future__ import annotations

import io
import json
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from botocore_check import problems

ARN = "arn:aws:sagemaker:us-east-1:123456789012"
EXPORT = "profile_export_aiperf.json"


def export(concurrency, *, failed=0, std="std"):
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


def archive(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, value in members.items():
            raw = value if isinstance(value, bytes) else json.dumps(value).encode()
            member = tarfile.TarInfo(name)
            member.size = len(raw)
            tar.addfile(member, io.BytesIO(raw))
    return buffer.getvalue()


class AwsJobs:
    """The service.

    Attributes:
        looks: Descriptions for which a job is in progress.
        fault: What the next job does: `failed`, `no_object`, `truncated`, `lacks_level`,
            `stopped`, or nothing.
        throttled: Descriptions that are refused first.
        objects: The bucket, by key.
        calls: Names of the operations that were asked.
    """

    def __init__(self):
        self.looks = 2
        self.fault = ""
        self.throttled = 0
        self.wrong = []
        self.calls = []
        self.workloads = {}
        self.jobs = {}
        self.recommendations = {}
        self.objects = {}
        handler = type("Handler", (_Handler,), {"aws": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    # operations

    def CreateAIWorkloadConfig(self, said):  # noqa: N802
        name = said["AIWorkloadConfigName"]
        if name in self.workloads:
            raise Refused("ResourceInUse", f"{name} exists")
        self.workloads[name] = json.loads(said["AIWorkloadConfigs"]["WorkloadSpec"]["Inline"])
        return {"AIWorkloadConfigArn": f"{ARN}:ai-workload-config/{name}"}

    def CreateAIBenchmarkJob(self, said):  # noqa: N802
        name = said["AIBenchmarkJobName"]
        if name in self.jobs:
            raise Refused("ResourceInUse", f"{name} exists")
        if said["AIWorkloadConfigIdentifier"] not in self.workloads:
            raise Refused("ResourceNotFound", "no such workload config")
        self.jobs[name] = {"said": said, "status": "InProgress", "looked": 0, "fault": self.fault}
        return {"AIBenchmarkJobArn": f"{ARN}:ai-benchmark-job/{name}"}

    def DescribeAIBenchmarkJob(self, said):  # noqa: N802
        if self.throttled:
            self.throttled -= 1
            raise Refused("ThrottlingException", "Rate exceeded")
        name = said["AIBenchmarkJobName"]
        job = self._job(name)
        job["looked"] += 1
        if job["status"] == "Stopping":
            job["status"] = "Stopped"
        elif job["status"] == "InProgress" and job["looked"] > self.looks:
            self._end(name, job)
        asked = job["said"]
        answer = {key: asked[key] for key in ("AIBenchmarkJobName", "BenchmarkTarget",
                  "OutputConfig", "AIWorkloadConfigIdentifier", "RoleArn")}  # fmt: skip
        answer |= {
            "AIBenchmarkJobArn": f"{ARN}:ai-benchmark-job/{name}",
            "AIBenchmarkJobStatus": job["status"],
            "CreationTime": 1_790_000_000.0,
        }
        if job["status"] == "Failed":
            answer["FailureReason"] = "the endpoint did not answer"
        return answer

    def StopAIBenchmarkJob(self, said):  # noqa: N802
        self._job(said["AIBenchmarkJobName"])["status"] = "Stopping"
        return {"AIBenchmarkJobArn": ARN}

    def DeleteAIBenchmarkJob(self, said):  # noqa: N802
        job = self._job(said["AIBenchmarkJobName"])
        if job["status"] in {"InProgress", "Stopping"}:
            raise Refused("ResourceInUse", "the job runs")
        del self.jobs[said["AIBenchmarkJobName"]]
        return {"AIBenchmarkJobArn": ARN}

    def DeleteAIWorkloadConfig(self, said):  # noqa: N802
        if self.workloads.pop(said["AIWorkloadConfigName"], None) is None:
            raise Refused("ResourceNotFound", "no such workload config")
        return {}

    def DescribeAIRecommendationJob(self, said):  # noqa: N802
        name = said["AIRecommendationJobName"]
        if name not in self.recommendations:
            raise Refused("ResourceNotFound", f"no job {name}")
        return {
            "AIRecommendationJobName": name,
            "AIRecommendationJobArn": f"{ARN}:ai-recommendation-job/{name}",
            "ModelSource": {"S3": {"S3Uri": "s3://b/m/"}},
            "OutputConfig": {"S3OutputLocation": "s3://b/o/"},
            "AIWorkloadConfigIdentifier": "w",
            "RoleArn": "arn:aws:iam::123456789012:role/sm",
            "CreationTime": 1_790_000_000.0,
            **self.recommendations[name],
        }

    def _job(self, name):
        if name not in self.jobs:
            raise Refused("ResourceNotFound", f"no job {name}")
        return self.jobs[name]

    def _end(self, name, job):
        fault = job["fault"]
        if fault in {"failed", "stopped"}:
            job["status"] = fault.capitalize()
            return
        job["status"] = "Completed"
        if fault == "no_object":
            return
        levels = self.workloads[name]["parameters"]["concurrency"]
        if isinstance(levels, list):
            members = {f"concurrency_{level}/{EXPORT}": export(level) for level in levels}
            if fault == "lacks_level":
                members.popitem()
        else:
            members = {EXPORT: export(levels)}
        raw = archive(members)
        where = job["said"]["OutputConfig"]["S3OutputLocation"]
        key = f"{where.removeprefix('s3://').partition('/')[2]}run-1/output.tar.gz"
        self.objects[key] = raw[: len(raw) // 2] if fault == "truncated" else raw


class Refused(Exception):
    def __init__(self, code, words):
        super().__init__(words)
        self.code = code


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    aws: AwsJobs

    def log_message(self, *_):
        pass

    def do_POST(self):
        operation = self.headers["X-Amz-Target"].rpartition(".")[2]
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        self.aws.calls.append(operation)
        wrong = problems(operation, said)
        self.aws.wrong += wrong
        try:
            if wrong:
                raise Refused("ValidationException", "; ".join(wrong))
            status, answer = 200, getattr(self.aws, operation)(said)
        except Refused as error:
            status, answer = 400, {"__type": error.code, "message": str(error)}
        self._answer(status, json.dumps(answer).encode(), "application/x-amz-json-1.1")

    def do_GET(self):
        """A bucket: a listing, or an object."""
        parts = urlsplit(self.path)
        key = parts.path.lstrip("/").partition("/")[2]
        if key:
            found = self.aws.objects.get(key)
            self._answer(404 if found is None else 200, found or b"", "application/gzip")
            return
        prefix = parse_qs(parts.query).get("prefix", [""])[0]
        keys = [each for each in self.aws.objects if each.startswith(prefix)]
        rows = "".join(f"<Contents><Key>{each}</Key><Size>1</Size></Contents>" for each in keys)
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        self._answer(200, text.encode(), "application/xml")

    def _answer(self, status, body, kind):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
