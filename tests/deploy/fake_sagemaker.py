"""A double of SageMaker's control plane and runtime, good enough for the real boto3.

It speaks JSON 1.1 (control) and the event stream (runtime) on loopback, holds requests
against botocore's model, and moves states by how often they were looked at, so that no
test waits: an endpoint is `Creating` for `looks` descriptions, then `InService`.
"""

from __future__ import annotations

import json
import struct
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from botocore_check import problems, service

ACCOUNT = "123456789012"

#: resource -> (the member that names it, what an ARN calls it)
KINDS = {
    "Model": ("ModelName", "model"),
    "EndpointConfig": ("EndpointConfigName", "endpoint-config"),
    "Endpoint": ("EndpointName", "endpoint"),
}


class Refusal(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class FakeSageMaker:
    """What exists, and how it answers.

    Attributes:
        looks: Descriptions for which a moving endpoint keeps its state.
        failure: Reason for which the next endpoint fails, where set.
        answer: Text pieces that the runtime streams.
        calls: Operations in the order in which they came.
    """

    def __init__(self) -> None:
        self.looks = 2
        self.failure = ""
        self.answer = ["Hel", "lo ", "world"]
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.held: dict[tuple[str, str], dict[str, Any]] = {}
        double = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.path.startswith("/endpoints/"):
                    self.stream(self.path.split("/")[2], json.loads(body))
                    return
                operation = self.headers["X-Amz-Target"].split(".")[-1]
                status, answer = double.control(operation, json.loads(body or b"{}"))
                self.reply(status, json.dumps(answer).encode(), "application/x-amz-json-1.1")

            def reply(self, status: int, body: bytes, kind: str, error: str = "") -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                if error:
                    self.send_header("x-amzn-ErrorType", error)
                self.end_headers()
                self.wfile.write(body)

            def stream(self, endpoint: str, request: dict[str, Any]) -> None:
                double.calls.append(("Invoke", request))
                state = double.held.get(("Endpoint", endpoint), {}).get("status")
                if state != "InService":
                    body = json.dumps({"Message": f"Endpoint {endpoint} not found."}).encode()
                    self.reply(400, body, "application/json", "ValidationError")
                    return
                self.send_response(200)
                self.send_header("Content-Type", "application/vnd.amazon.eventstream")
                self.send_header("X-Amzn-SageMaker-Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for chunk in double.frames():
                    self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
                self.wfile.write(b"0\r\n\r\n")

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    # control plane

    def control(self, operation: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.calls.append((operation, request))
        try:
            wrong = problems(operation, request)
            if wrong:
                raise Refusal("ValidationException", "; ".join(wrong))
            verb = next(
                verb for verb in ("Create", "Describe", "Delete") if operation.startswith(verb)
            )
            kind = operation.removeprefix(verb)
            answer = getattr(self, verb.lower())(kind, request[KINDS[kind][0]], request)
        except Refusal as refusal:
            return 400, {"__type": refusal.code, "message": str(refusal)}
        shape = service().operation_model(operation).output_shape
        missing = [name for name in (shape.required_members if shape else ()) if name not in answer]
        assert not missing, f"the double's {operation} lacks {missing}"
        return 200, answer

    def create(self, kind: str, name: str, request: dict[str, Any]) -> dict[str, Any]:
        if (kind, name) in self.held:
            raise Refusal("ValidationException", f'Cannot create already existing {kind} "{name}".')
        if kind == "EndpointConfig":
            self.existing("Model", request["ProductionVariants"][0]["ModelName"])
        if kind == "Endpoint":
            self.existing("EndpointConfig", request["EndpointConfigName"])
        row = {"request": request, "status": "Creating", "looked": 0, "fails": self.failure}
        self.held[kind, name] = row
        return {f"{kind}Arn": self.arn(kind, name)}

    def describe(self, kind: str, name: str, request: dict[str, Any]) -> dict[str, Any]:
        row = self.existing(kind, name)
        about = {
            **row["request"],
            f"{kind}Arn": self.arn(kind, name),
            "CreationTime": 1.7e9,
            "LastModifiedTime": 1.7e9,
        }
        about.pop("Tags", None)
        if kind == "Endpoint":
            self.step(name, row)
            if ("Endpoint", name) not in self.held:
                return self.describe(kind, name, request)
            about["EndpointStatus"] = row["status"]
            if row["status"] == "Failed":
                about["FailureReason"] = row["fails"]
        return about

    def step(self, name: str, row: dict[str, Any]) -> None:
        row["looked"] += 1
        if row["looked"] <= self.looks:
            return
        if row["status"] == "Creating":
            row["status"] = "Failed" if row["fails"] else "InService"
        elif row["status"] == "Deleting":
            del self.held["Endpoint", name]

    def delete(self, kind: str, name: str, request: dict[str, Any]) -> dict[str, Any]:
        row = self.existing(kind, name)
        if kind != "Endpoint":
            del self.held[kind, name]
            return {}
        if row["status"] == "Creating":
            raise Refusal("ValidationException", f"Cannot update in-progress endpoint {name}.")
        row |= {"status": "Deleting", "looked": 0}
        return {}

    def existing(self, kind: str, name: str) -> dict[str, Any]:
        if (kind, name) not in self.held:
            raise Refusal("ValidationException", f'Could not find {kind} "{self.arn(kind, name)}".')
        return self.held[kind, name]

    def arn(self, kind: str, name: str) -> str:
        return f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:{KINDS[kind][1]}/{name}"

    # runtime

    def frames(self) -> list[bytes]:
        """Server-sent events in event-stream frames that end in the middle of them."""
        events = [{"choices": [{"delta": {"content": piece}}]} for piece in self.answer]
        events.append({"choices": [], "usage": {"completion_tokens": len(self.answer)}})
        text = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
        text += b"data: [DONE]\n\n"
        return [_frame(text[start : start + 23]) for start in range(0, len(text), 23)]


def _frame(payload: bytes) -> bytes:
    """One event-stream message: lengths, their checksum, headers, payload, checksum."""
    headers = b""
    for name, value in (
        (":message-type", "event"),
        (":event-type", "PayloadPart"),
        (":content-type", "application/octet-stream"),
    ):
        headers += bytes([len(name)]) + name.encode() + b"\x07"
        headers += struct.pack("!H", len(value)) + value.encode()
    start = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    start += struct.pack("!I", zlib.crc32(start))
    message = start + headers + payload
    return message + struct.pack("!I", zlib.crc32(message))
