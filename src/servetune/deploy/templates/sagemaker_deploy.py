#!/usr/bin/env python3
"""Create, watch, call and delete the SageMaker endpoint that lies beside this file.

    python deploy.py plan      show what would be created; no AWS, no boto3
    python deploy.py create    create model, endpoint configuration and endpoint, and wait
    python deploy.py status    what exists, and in which state
    python deploy.py invoke    send one streaming request and show the answer as it comes
    python deploy.py delete    delete all three, in the order that SageMaker allows

The requests are the JSON files beside this script, sent as they stand but for the role
and, where you ask for it, a Hugging Face token. Everything but `plan` needs boto3
(pip install boto3) and AWS credentials. An endpoint costs money until it is deleted.

Exit status: 0 done, 1 not there or not ready, 2 wrong use, 4 AWS refused or the
endpoint failed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROLE_PLACEHOLDER = "${SAGEMAKER_ROLE_ARN}"
ROLE_PATTERN = re.compile(r"arn:aws[a-z\-]*:iam::\d{12}:role/[a-zA-Z_0-9+=,.@\-_/]+")
#: Endpoint states that end by themselves.
MOVING = ("Creating", "Updating", "SystemUpdating", "RollingBack", "Deleting")


class Stop(Exception):
    """End with a message, a hint and an exit status."""

    def __init__(self, message: str, hint: str = "", status: int = 2) -> None:
        super().__init__(message)
        self.hint = hint
        self.status = status


def say(text: str = "") -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def load(name: str) -> dict[str, Any]:
    try:
        content = json.loads((HERE / name).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Stop(f"cannot read {name}: {error}", "render the bundle again") from None
    if not isinstance(content, dict):
        raise Stop(f"{name} holds no JSON object", "render the bundle again")
    return content


def role_arn(options: argparse.Namespace) -> str:
    """The execution role: --role-arn, else SAGEMAKER_ROLE_ARN, else what was rendered."""
    rendered = str(load("model.json").get("ExecutionRoleArn", ""))
    role = options.role_arn or os.environ.get("SAGEMAKER_ROLE_ARN") or rendered
    if role in ("", ROLE_PLACEHOLDER):
        raise Stop("no execution role", "give --role-arn or set SAGEMAKER_ROLE_ARN")
    if not ROLE_PATTERN.fullmatch(role):
        raise Stop(
            f"'{role}' is not the ARN of a role",
            "it looks like arn:aws:iam::123456789012:role/SageMakerExecution",
        )
    return role


def client(service: str, options: argparse.Namespace) -> Any:
    """A boto3 client for the region that the bundle was rendered for."""
    region = load("plan.json")["region"]
    if options.region and options.region != region:
        raise Stop(
            f"the bundle was rendered for {region}, not {options.region}",
            "the image's account differs by region: render it again with the other one",
        )
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise Stop("boto3 is not installed", "pip install boto3") from None
    # A request that invoke sends must be counted once, so its client never retries.
    retries = {"total_max_attempts": 1 if service == "sagemaker-runtime" else 5}
    return boto3.client(service, region_name=region, config=Config(retries=retries))


def is_missing(error: Exception) -> bool:
    """Whether AWS says that a thing is not there (a ValidationException of that wording)."""
    answer = getattr(error, "response", {}).get("Error", {})
    return answer.get("Code") in ("ValidationException", "ResourceNotFound") and (
        "Could not find" in answer.get("Message", "")
    )


def found(call: Any, **names: str) -> dict[str, Any] | None:
    """What a describe call says, or None where the thing does not exist."""
    try:
        answer: dict[str, Any] = call(**names)
    except Exception as error:
        if is_missing(error):
            return None
        raise
    return answer


def endpoint_state(sagemaker: Any, name: str) -> tuple[str | None, str]:
    """The endpoint's status, None where it does not exist, and why it failed."""
    answer = found(sagemaker.describe_endpoint, EndpointName=name)
    if answer is None:
        return None, ""
    return str(answer["EndpointStatus"]), str(answer.get("FailureReason", ""))


def wait(sagemaker: Any, name: str, options: argparse.Namespace) -> str | None:
    """Follow the endpoint until it rests, telling each change and the time it took."""
    begin_s = time.monotonic()
    shown: object = object()
    while True:
        status, reason = endpoint_state(sagemaker, name)
        passed_s = time.monotonic() - begin_s
        if status != shown:
            note(f"[{passed_s:6.0f} s] {name}: {status or 'gone'} {reason}".rstrip())
            shown = status
        if status not in MOVING:
            return status
        if passed_s > options.timeout_min * 60:
            raise Stop(
                f"still {status} after {options.timeout_min:g} minutes",
                "it goes on without this script: python deploy.py status",
                status=4,
            )
        time.sleep(options.poll_s)


def token_from(options: argparse.Namespace) -> str | None:
    """A Hugging Face token from the environment or Secrets Manager, if one was asked for."""
    if options.hf_token_from_env:
        token = os.environ.get("HF_TOKEN")
        if not token:
            raise Stop("HF_TOKEN is not set", "export it, or use --hf-token-secret ARN")
        return token
    if options.hf_token_secret:
        answer = client("secretsmanager", options).get_secret_value(
            SecretId=options.hf_token_secret
        )
        return str(answer["SecretString"])
    return None


def show_plan(options: argparse.Namespace) -> int:  # noqa: ARG001
    about, model = load("plan.json"), load("model.json")
    variant = load("endpoint_config.json")["ProductionVariants"][0]
    container = model["PrimaryContainer"]
    say(f"endpoint   {about['endpoint_name']}  ({about['region']})")
    say(f"instance   {variant['InitialInstanceCount']} x {variant['InstanceType']}")
    say(f"image      {container['Image']}")
    say(f"host       {variant.get('InferenceAmiVersion', 'default')}")
    price = about.get("price")
    if price:
        say(
            f"price      ${price['usd_per_hour']:.4f} per hour ({price['region']}, {price['date']})"
        )
        say(f"           source: {price['source']}")
    else:
        say("price      not known for this instance type: look it up before you create it")
    if about.get("simulated"):
        say("measured   SIMULATED: no real server has run this plan yet")
    say("environment")
    for key, value in container["Environment"].items():
        say(f"  {key}={value}")
    for warning in about.get("warnings", []):
        say(f"warning: {warning}")
    say("nothing was created")
    return 0


def create(options: argparse.Namespace) -> int:
    if options.dry_run:
        return show_plan(options)
    model, config, endpoint = (
        load(name) for name in ("model.json", "endpoint_config.json", "endpoint.json")
    )
    model["ExecutionRoleArn"] = role_arn(options)
    sagemaker = client("sagemaker", options)
    name = endpoint["EndpointName"]
    there = found(sagemaker.describe_endpoint, EndpointName=name)
    if there and there.get("EndpointConfigName") != config["EndpointConfigName"]:
        raise Stop(
            f"endpoint '{name}' exists with other settings ({there.get('EndpointConfigName')})",
            "delete it first, or render the bundle with another endpoint name",
            status=4,
        )
    token = token_from(options)
    if token:
        model["PrimaryContainer"]["Environment"]["HF_TOKEN"] = token
        note("the token goes into the model's environment: who may describe the model can read it")
    if found(sagemaker.describe_model, ModelName=model["ModelName"]) is None:
        sagemaker.create_model(**model)
        note(f"created model {model['ModelName']}")
    config_name = config["EndpointConfigName"]
    if found(sagemaker.describe_endpoint_config, EndpointConfigName=config_name) is None:
        sagemaker.create_endpoint_config(**config)
        note(f"created endpoint configuration {config_name}")
    if there is None:
        sagemaker.create_endpoint(**endpoint)
        note(f"created endpoint {name}; it costs money from now until it is deleted")
    if options.no_wait:
        return 0
    status = wait(sagemaker, name, options)
    if status != "InService":
        _, reason = endpoint_state(sagemaker, name)
        raise Stop(
            f"endpoint '{name}' is {status or 'gone'}: {reason or 'no reason given'}",
            "read its log (README.md), then python deploy.py delete",
            status=4,
        )
    say(f"{name} is in service")
    return 0


def status(options: argparse.Namespace) -> int:
    model, config, endpoint = (
        load(name) for name in ("model.json", "endpoint_config.json", "endpoint.json")
    )
    sagemaker = client("sagemaker", options)
    has_model = found(sagemaker.describe_model, ModelName=model["ModelName"])
    has_config = found(
        sagemaker.describe_endpoint_config, EndpointConfigName=config["EndpointConfigName"]
    )
    state, reason = endpoint_state(sagemaker, endpoint["EndpointName"])
    say(f"model            {model['ModelName']}: {'exists' if has_model else 'not there'}")
    config_name = config["EndpointConfigName"]
    say(f"endpoint config  {config_name}: {'exists' if has_config else 'not there'}")
    say(f"endpoint         {endpoint['EndpointName']}: {state or 'not there'} {reason}".rstrip())
    return 0 if state == "InService" else 1


def events(body: Any) -> Any:
    """Server-sent events out of SageMaker's frames, which end anywhere within them."""
    buffer = b""
    for frame in body:
        buffer += frame.get("PayloadPart", {}).get("Bytes", b"")
        *whole, buffer = re.split(rb"\r?\n\r?\n", buffer)
        yield from whole
    if buffer.strip():
        yield buffer


def invoke(options: argparse.Namespace) -> int:
    about = load("plan.json")
    request = {
        "model": about["served_model"],
        "messages": [{"role": "user", "content": options.prompt}],
        "max_tokens": options.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    runtime = client("sagemaker-runtime", options)
    begin_s = time.monotonic()
    answer = runtime.invoke_endpoint_with_response_stream(
        EndpointName=about["endpoint_name"],
        ContentType="application/json",
        Body=json.dumps(request).encode(),
    )
    first_s, usage, pieces = None, None, 0
    for event in events(answer["Body"]):
        text = event.decode("utf-8", "replace").strip()
        data = text.removeprefix("data:").strip()
        if not data or data == "[DONE]":
            continue
        try:
            content = json.loads(data)
        except ValueError:
            raise Stop(f"the answer is no JSON: {data[:200]}", status=4) from None
        if "error" in content:
            raise Stop(f"the model refused: {content['error']}", status=4)
        usage = content.get("usage") or usage
        for choice in content.get("choices", []):
            piece = (choice.get("delta") or {}).get("content") or choice.get("text") or ""
            if piece:
                first_s = first_s or time.monotonic() - begin_s
                pieces += 1
                sys.stdout.write(piece)
                sys.stdout.flush()
    say()
    if first_s is None:
        raise Stop("the answer held no text", "read the endpoint's log (README.md)", status=4)
    tokens = (usage or {}).get("completion_tokens", pieces)
    note(
        f"first token after {first_s * 1000:.0f} ms, "
        f"{tokens} tokens in {time.monotonic() - begin_s:.2f} s"
    )
    return 0


def delete(options: argparse.Namespace) -> int:
    """Endpoint, then its configuration, then the model; what is not there is passed over."""
    model, config, endpoint = (
        load(name) for name in ("model.json", "endpoint_config.json", "endpoint.json")
    )
    sagemaker = client("sagemaker", options)
    name = endpoint["EndpointName"]
    state, _ = endpoint_state(sagemaker, name)
    if state in MOVING and state != "Deleting":
        note(f"{name} is {state}; SageMaker deletes it only when that has ended")
        state = wait(sagemaker, name, options)
    if state is not None:
        if state != "Deleting":
            sagemaker.delete_endpoint(EndpointName=name)
        wait(sagemaker, name, options)
    config_name = config["EndpointConfigName"]
    if found(sagemaker.describe_endpoint_config, EndpointConfigName=config_name):
        sagemaker.delete_endpoint_config(EndpointConfigName=config_name)
        note(f"deleted endpoint configuration {config_name}")
    if found(sagemaker.describe_model, ModelName=model["ModelName"]):
        sagemaker.delete_model(ModelName=model["ModelName"])
        note(f"deleted model {model['ModelName']}")
    say(f"nothing of {name} is left")
    return 0


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="deploy.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb, run, about in (
        ("plan", show_plan, "show what would be created"),
        ("create", create, "create the endpoint and wait"),
        ("status", status, "what exists"),
        ("invoke", invoke, "send one streaming request"),
        ("delete", delete, "delete everything"),
    ):
        sub = verbs.add_parser(verb, help=about)
        sub.set_defaults(run=run)
        if verb == "plan":
            continue
        sub.add_argument("--region", help="must be the one the bundle was rendered for")
        if verb in ("create", "delete"):
            sub.add_argument("--poll-s", type=float, default=15.0, help="between two looks")
            sub.add_argument("--timeout-min", type=float, default=60.0, help="longest wait")
        if verb == "create":
            sub.add_argument("--role-arn", help="execution role; else SAGEMAKER_ROLE_ARN")
            sub.add_argument("--dry-run", action="store_true", help="same as plan")
            sub.add_argument("--no-wait", action="store_true", help="return at once")
            token = sub.add_mutually_exclusive_group()
            token.add_argument(
                "--hf-token-from-env", action="store_true", help="for a gated model: HF_TOKEN"
            )
            token.add_argument(
                "--hf-token-secret", metavar="ARN", help="for a gated model: Secrets Manager"
            )
        if verb == "invoke":
            sub.add_argument("--prompt", default="Say hello in one sentence.")
            sub.add_argument("--max-tokens", type=int, default=64)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parsed(arguments)
    try:
        return int(options.run(options))
    except Stop as stop:
        note(f"error: {stop}")
        if stop.hint:
            note(f"hint: {stop.hint}")
        return stop.status
    except KeyboardInterrupt:
        note("interrupted; what was begun goes on: python deploy.py status")
        return 130
    except Exception as error:
        # The edge of the process: AWS's own errors are told, anything else is a defect.
        if type(error).__module__.split(".")[0] not in ("botocore", "boto3"):
            raise
        note(f"error: {error}")
        note("hint: check credentials, permissions and quota; python deploy.py status")
        return 4


if __name__ == "__main__":
    sys.exit(main())
