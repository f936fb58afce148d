"""Commands of the AWS CLI that make an endpoint from its request files, and delete it again.

For whoever may not, or does not want to, run servetune where the endpoint is made: each request of
the deployment is a file that `--cli-input-json` takes as it is.
"""

from __future__ import annotations

from servetune.deploy.deployment import (
    Deployment,
    Step,
    from_zero_policy,
    needs_token,
    with_role,
)

#: Commands by the kind that they make.
_MAKE = {
    "model": "sagemaker create-model",
    "endpoint-config": "sagemaker create-endpoint-config",
    "endpoint": "sagemaker create-endpoint",
    "component": "sagemaker create-inference-component",
    "adapter": "sagemaker create-inference-component",
    "scalable-target": "application-autoscaling register-scalable-target",
    "scaling-policy": "application-autoscaling put-scaling-policy",
    "alarm": "cloudwatch put-metric-alarm",
}


def request_files(deployment: Deployment) -> dict[tuple[str, str], str]:
    """Names of the files of a deployment's requests, by kind and name of what they make."""
    found: dict[tuple[str, str], str] = {}
    for kind in _MAKE:
        stem = kind.replace("-", "_")
        for number, step in enumerate(deployment.of_kind(kind), start=1):
            found[kind, step.name] = f"{stem}.json" if number == 1 else f"{stem}_{number}.json"
    return found


def making(deployment: Deployment) -> list[str]:
    """Lines of a shell that make everything, in its order."""
    files = request_files(deployment)
    role_known = "ExecutionRoleArn" in deployment.only("model").request
    lines = []
    for step, with_it in zip(deployment.steps, with_role(deployment, "").steps, strict=True):
        takes_role = not role_known and "ExecutionRoleArn" in with_it.request
        role = ' --execution-role-arn "$SAGEMAKER_ROLE_ARN"' if takes_role else ""
        lines += _make(step, files[step.kind, step.name], role, deployment)
    return lines


def deleting(deployment: Deployment) -> list[str]:
    """Lines of a shell that delete everything, in the order that AWS allows."""
    aws = f"aws --region {deployment.region}"
    lines = []
    for target in deployment.of_kind("scalable-target"):  # and its policies
        of = target.request
        lines.append(
            f"{aws} application-autoscaling deregister-scalable-target --service-namespace "
            f"sagemaker --resource-id {of['ResourceId']} "
            f"--scalable-dimension {of['ScalableDimension']}"
        )
    alarms = " ".join(step.name for step in deployment.of_kind("alarm"))
    if alarms:
        lines.append(f"{aws} cloudwatch delete-alarms --alarm-names {alarms}")
    for component in (*deployment.of_kind("adapter"), *deployment.of_kind("component")):
        named = f"--inference-component-name {component.name}"
        describe = f"{aws} sagemaker describe-inference-component {named}"
        lines += [
            f"{aws} sagemaker delete-inference-component {named}",
            f"while {describe} >/dev/null 2>&1; do sleep 20; done",
        ]
    endpoint = f"--endpoint-name {deployment.endpoint}"
    config, model = deployment.only("endpoint-config").name, deployment.only("model").name
    return [
        *lines,
        f"{aws} sagemaker delete-endpoint {endpoint}   # the cost ends here",
        f"{aws} sagemaker wait endpoint-deleted {endpoint}",
        f"{aws} sagemaker delete-endpoint-config --endpoint-config-name {config}",
        f"{aws} sagemaker delete-model --model-name {model}",
    ]


def _make(step: Step, file: str, role: str, deployment: Deployment) -> list[str]:
    """Lines that make one resource and wait until what stands on it can be made."""
    aws = f"aws --region {deployment.region}"
    make = f"{aws} {_MAKE[step.kind]} --cli-input-json file://{file}"
    if step.kind == "model" and needs_token(deployment):
        filled = f"jq '.PrimaryContainer.Environment.HF_TOKEN = env.HF_TOKEN' {file}"
        return [f"{filled} | {make.replace(file, '/dev/stdin')}{role}"]
    if step.kind == "endpoint":
        wait = f"{aws} sagemaker wait endpoint-in-service --endpoint-name {step.name}"
        return [f"{make}   # costs money from here", wait]
    if step.kind in ("component", "adapter"):
        status = (
            f"{aws} sagemaker describe-inference-component --inference-component-name {step.name} "
            "--query InferenceComponentStatus --output text"
        )
        wait = f'while [ "$({status})" = Creating ]; do sleep 20; done'
        return [make, wait]
    if step.name == from_zero_policy(deployment.endpoint):
        return [f"policy=$({make} --query PolicyARN --output text)"]
    if step.kind == "alarm":
        return [f'{make} --alarm-actions "$policy"']
    return [f"{make}{role}"]
