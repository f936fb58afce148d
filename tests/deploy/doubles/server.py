"""The socket: one server for all services, told apart as botocore really addresses them."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from doubles.control import ACCOUNT, ControlPlane, Refusal
from doubles.iam import may
from doubles.jobs import AiJobs
from doubles.runtime import Asked, ContainerRefused, Runtime
from doubles.s3 import ObjectStore, operation_of
from doubles.services import OtherServices
from doubles.signed import wrong_signature

#: X-Amz-Target's prefix -> service
TARGETS = {
    "SageMaker": "sagemaker",
    "AnyScaleFrontendService": "application-autoscaling",
    "ServiceQuotasV20190624": "service-quotas",
    "AWSPriceListService": "pricing",
    "Logs_20140328": "logs",
    "secretsmanager": "secretsmanager",
    "GraniteServiceVersion20100801": "cloudwatch",
}

#: Environment variable that sends a service's clients here.
ENDPOINTS = (
    "SAGEMAKER", "SAGEMAKER_RUNTIME", "APPLICATION_AUTO_SCALING", "SERVICE_QUOTAS", "PRICING",
    "CLOUDWATCH", "CLOUDWATCH_LOGS", "SECRETS_MANAGER", "S3", "STS",
)  # fmt: skip


class Crash(BaseException):
    """Stands for a process that dies between two lines."""


class FakeAws:
    """AWS on loopback.

    Args:
        now_s: A clock of the test's; without it time passes by `look_s` with every
            description, so that a process that cannot share a clock sees states change.
        look_s: Seconds per description.

    Attributes:
        calls: (service, operation, request) in the order in which they came.
        throttled: Operation -> how many answers are throttles still.
        failing: Operation -> how many answers are server errors still.
        busy: Operation -> how many answers are that the thing is in progress still, whatever
            its description says.
        denied: Operations that the caller may not use.
        allowed: Operation of S3 -> how many are done before the line breaks for good.
        silent_after: How many changing requests are answered; the next is done, and its answer
            never comes. `None` to answer all.
        fell_silent: Set when that has happened, for a test that kills who waits.
        caller: ARN of whoever asks.
        policy: IAM policy of whoever asks; `None` for one who may do everything.
    """

    def __init__(self, now_s: Callable[[], float] | None = None, *, look_s: float = 0.0) -> None:
        self._passed_s = 1.7e9
        self._given, self.look_s = now_s, look_s
        self.control = ControlPlane(self.now_s)
        self.services = OtherServices(self.control)
        self.control.targets, self.control.alarms = self.services.targets, self.services.alarms
        self.s3 = ObjectStore()
        self.runtime = Runtime(self._is_serving)
        self.control.jobs = AiJobs(self.control, self.s3, self._is_serving)
        self.calls: list[tuple[str, str, Any]] = []
        self.throttled: Counter[str] = Counter()
        self.failing: Counter[str] = Counter()
        self.busy: Counter[str] = Counter()
        self.denied: set[str] = set()
        self.allowed: dict[str, int] = {}
        self.silent_after: int | None = None
        self.fell_silent = threading.Event()
        self.policy: dict[str, Any] | None = None
        self.caller = f"arn:aws:sts::{ACCOUNT}:assumed-role/Developer/alice"
        self._ending = threading.Event()
        self._lock = threading.RLock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._ending.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def jobs(self) -> AiJobs:
        return self.control.jobs

    def now_s(self) -> float:
        return self._given() if self._given else self._passed_s

    def operations(self, *, reading: bool = False) -> list[str]:
        """What was asked, without the looking unless it is wanted."""
        looks = ("Describe", "List", "Get", "Head")
        return [name for _, name, _ in self.calls if reading or not name.startswith(looks)]

    @property
    def environ(self) -> dict[str, str]:
        """For a process whose clients shall come here."""
        return {f"AWS_ENDPOINT_URL_{name}": self.url for name in ENDPOINTS} | {
            "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "secret-of-the-doubles",
            "AWS_CONFIG_FILE": "/nonexistent",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def clients(self, *, crash_at: int | None = None, when: str = "before") -> Any:
        """A maker of real boto3 clients for this server.

        Args:
            crash_at: Number of the changing request at which the process dies, from 0.
            when: `before` it is sent, or `after` it was done and before its answer is seen.
        """
        from botocore.config import Config

        seen = [0]

        def crash(model: Any, **_: Any) -> None:
            if model.name.startswith(("Describe", "List", "Get", "Head")):
                return
            seen[0] += 1
            if crash_at is not None and seen[0] == crash_at + 1:
                raise Crash

        def make(service: str) -> Any:
            client = _session().client(
                service,
                region_name="us-east-1",
                endpoint_url=self.url,
                aws_access_key_id="x",
                aws_secret_access_key="y",
                config=Config(retries={"total_max_attempts": 1}),
            )
            event = {"before": "before-call", "after": "after-call"}[when]
            client.meta.events.register(f"{event}.*.*", crash)
            return client

        return make

    def json(self, service: str, operation: str, request: dict[str, Any]) -> tuple[int, Any]:
        """Status and JSON answer of one request."""
        with self._lock:
            self.calls.append((service, operation, request))
            if operation.startswith("Describe"):
                self._passed_s += self.look_s
            try:
                self._faults(operation)
                if self.policy is not None:
                    may(self.policy, service, operation, request)
                if service == "sagemaker":
                    return 200, self.control.answer(operation, request)
                return 200, self.services.answer(operation, request)
            except Refusal as refusal:
                return refusal.status, {"__type": refusal.code, "message": refusal.message}

    def identity(self) -> str:
        """Answer of the Security Token Service, in its XML."""
        self.calls.append(("sts", "GetCallerIdentity", {}))
        return (
            '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
            f"<GetCallerIdentityResult><Arn>{self.caller}</Arn><UserId>A:alice</UserId>"
            f"<Account>{ACCOUNT}</Account></GetCallerIdentityResult>"
            "</GetCallerIdentityResponse>"
        )

    def hold_back(self, operation: str, status: int) -> None:
        """Keep an answer for ever, where it is its turn."""
        looks = operation.startswith(("Describe", "List", "Get", "Head"))
        if self.silent_after is None or looks or status >= 400:
            return
        self.silent_after -= 1
        if self.silent_after < 0:
            self.fell_silent.set()
            self._ending.wait()

    def _faults(self, operation: str) -> None:
        if operation in self.denied:
            raise Refusal("AccessDeniedException", f"User is not authorized to do {operation}")
        if self.busy[operation] > 0:
            self.busy[operation] -= 1
            raise Refusal("ValidationException", "Cannot update in-progress endpoint.")
        for counter, status, code in (
            (self.throttled, 400, "ThrottlingException"),
            (self.failing, 500, "InternalFailure"),
        ):
            if counter[operation] > 0:
                counter[operation] -= 1
                raise Refusal(code, "Rate exceeded" if status == 400 else "We failed", status)

    def stored(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        with self._lock:
            name = operation_of(method, target)
            self.calls.append(("s3", name, target))
            if self.policy is not None:
                try:
                    may(self.policy, "s3", name, target)
                except Refusal:
                    return 403, {}, b"<Error><Code>AccessDenied</Code></Error>"
            if name in self.allowed:
                self.allowed[name] -= 1
                if self.allowed[name] < 0:
                    return 403, {}, b"<Error><Code>AccessDenied</Code></Error>"
            if self.failing[name] > 0:
                self.failing[name] -= 1
                return 503, {}, b"<Error><Code>SlowDown</Code><Message>slow</Message></Error>"
            return self.s3.answer(method, target, headers, body)

    def _is_serving(self, endpoint: str, component: str | None) -> str:
        try:
            said = self.control.describe_endpoint({"EndpointName": endpoint})
        except Refusal:
            return f"Endpoint {endpoint} of account not found."
        if said["EndpointStatus"] not in ("InService", "Updating"):
            return f"Endpoint {endpoint} is {said['EndpointStatus']}."
        components = self.control._components_of(endpoint)
        if components and component is None:
            return "Inference Component Name header is required for this endpoint."
        if component is not None and component not in components:
            return f"Inference Component {component} not found."
        return ""


@cache
def _session() -> Any:
    """One for all tests: reading a service's model takes a second."""
    import boto3

    return boto3.Session()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512  # a load test connects all at once; five would wait for seconds


def _handler(double: FakeAws) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each answer waits 40 ms for the other side
        wbufsize = 65536

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

        def handle_expect_100(self) -> bool:
            """Clients wait a second for this word before they send a body."""
            super().handle_expect_100()
            self.wfile.flush()
            return True

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            target = self.headers.get("X-Amz-Target")
            if target:
                prefix, _, operation = target.rpartition(".")
                status, answer = double.json(TARGETS[prefix], operation, json.loads(body or b"{}"))
                double.hold_back(operation, status)
                self.reply(status, json.dumps(answer, default=str).encode(),
                           {"Content-Type": "application/x-amz-json-1.1"})  # fmt: skip
            elif self.path.startswith("/endpoints/"):
                self.invoke(body)
            elif body.startswith(b"Action=GetCallerIdentity"):
                self.reply(200, double.identity().encode(), {"Content-Type": "text/xml"})
            else:
                named = {name.lower(): value for name, value in self.headers.items()}
                status, about, answer = double.stored(self.command, self.path, named, body)
                double.hold_back(operation_of(self.command, self.path), status)
                self.reply(status, answer, about)

        def invoke(self, body: bytes) -> None:
            _, _, endpoint, kind, *rest = self.path.split("/")
            component = self.headers.get("X-Amzn-SageMaker-Inference-Component")
            said = json.loads(body or b"{}")
            double.calls.append(("sagemaker-runtime", kind, said))
            refused = self._unsigned(kind, body) or double.runtime.refusal(endpoint, component)
            if refused:
                self.refuse(*refused)
                return
            asked = Asked(endpoint, component, self._route(kind, rest, said), body)
            try:
                if kind == "openai":
                    self.plain(asked, streams=bool(said.get("stream")))
                elif kind == "invocations":
                    self.whole(asked)
                else:
                    self.chunked(double.runtime.frames(asked), {
                        "Content-Type": "application/vnd.amazon.eventstream",
                        "X-Amzn-SageMaker-Content-Type": "text/event-stream",
                        "x-Amzn-Invoked-Production-Variant": "AllTraffic",
                    })  # fmt: skip
            except ContainerRefused as error:
                self.refuse(424, "ModelError", error.body)

        def _unsigned(self, kind: str, body: bytes) -> tuple[int, str, dict[str, Any]] | None:
            secrets = double.runtime.secrets
            if not secrets or kind == "openai":
                return None
            wrong = wrong_signature(self.headers, f"{double.url}{self.path}", body, secrets)
            if wrong is None:
                return None
            # AWS repeats what it had signed, word for word.
            echoed = "\n".join(f"{k}:{v}" for k, v in self.headers.items() if k[:2] in "X-x-")
            return 403, "InvalidSignatureException", {"message": f"{wrong}: {echoed}"}

        def _route(self, kind: str, rest: list[str], said: dict[str, Any]) -> str:
            """Of the container: as asked for, or as its own /invocations decides by the body."""
            if kind == "openai":
                return "/" + "/".join(rest)
            wanted = self.headers.get("X-Amzn-SageMaker-Custom-Attributes", "")
            if wanted.startswith("route="):
                return wanted.removeprefix("route=")
            return "/v1/completions" if "prompt" in said else "/v1/chat/completions"

        def refuse(self, status: int, name: str, said: dict[str, Any]) -> None:
            about = {"Content-Type": "application/json", "x-amzn-ErrorType": name}
            self.reply(status, json.dumps(said).encode(), about)

        def whole(self, asked: Asked) -> None:
            status, content, answer = double.runtime.whole(asked)
            if status != 200:
                raise ContainerRefused(status, answer.decode("utf-8", "replace"))
            about = {"x-Amzn-Invoked-Production-Variant": "AllTraffic"}
            self.reply(status, answer, {"Content-Type": content, **about})

        def plain(self, asked: Asked, *, streams: bool) -> None:
            """The OpenAI-compatible route: no frames, as the engine itself would answer."""
            if streams:
                events = double.runtime.events(asked)
                self.chunked(events, {"Content-Type": "text/event-stream"})
                return
            status, content, answer = double.runtime.whole(asked)
            self.reply(status, answer, {"Content-Type": content})

        def chunked(self, pieces: Any, about: dict[str, str]) -> None:
            self.send_response(200)
            for name, value in about.items():
                self.send_header(name, value)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in pieces:
                # HTTP chunks are cut within frames, too.
                for cut in (piece[:7], piece[7:]):
                    if cut:
                        self.wfile.write(f"{len(cut):x}\r\n".encode() + cut + b"\r\n")
                        self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        def reply(self, status: int, body: bytes, about: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in about.items():
                self.send_header(name, value)
            if "Content-Length" not in about:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    for method in ("POST", "GET", "PUT", "DELETE", "HEAD"):
        setattr(Handler, f"do_{method}", Handler.handle_any)
    return Handler
