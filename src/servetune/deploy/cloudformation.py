"""CloudFormation template of a deployment: the same requests as resources of a stack.

The properties of CloudFormation's resources are the members of the API's requests, so each step
becomes a resource of its own; names that one step takes from another become references, by which
the stack knows their order. What the live path decides while it runs is written into the template
or is one of its parameters: the hub's token, which CloudFormation reads from Secrets Manager; the
copies that autoscaling has chosen; the alarms that roll an update back.
"""

from __future__ import annotations

from servetune.deploy.batches import MOST_ROLLOUT_S, all_at_once, batch_of_any, rolling_update
from servetune.deploy.deployment import Deployment, Step, from_zero_policy, needs_token
from servetune.errors import CannotRender
from servetune.json_value import JsonObject

TEMPLATE_FILE = "template.json"

_TYPES = {
    "model": "AWS::SageMaker::Model",
    "endpoint-config": "AWS::SageMaker::EndpointConfig",
    "endpoint": "AWS::SageMaker::Endpoint",
    "component": "AWS::SageMaker::InferenceComponent",
    "adapter": "AWS::SageMaker::InferenceComponent",
    "scalable-target": "AWS::ApplicationAutoScaling::ScalableTarget",
    "scaling-policy": "AWS::ApplicationAutoScaling::ScalingPolicy",
    "alarm": "AWS::CloudWatch::Alarm",
    "rollback-alarm": "AWS::CloudWatch::Alarm",
}
_ROLE, _SECRET, _COPIES, _HAS_TOKEN = "ExecutionRoleArn", "HfTokenSecretArn", "Copies", "HasToken"
_TRIGGERS, _IN_BATCHES = "RollbackTriggers", "InBatches"
_ABSENT: JsonObject = {"Ref": "AWS::NoValue"}


def template(deployment: Deployment, token_secret: str | None = None) -> JsonObject:
    """The template.

    Args:
        deployment: The deployment; without its role, the stack asks for it.
        token_secret: ARN of the secret that holds the hub's token; `None` if the stack is told.

    Raises:
        CannotRender: CloudFormation has no property for a member of a request (cfn-lint 1.58).
    """
    if "ContainerMetricsConfig" in deployment.only("model").request["PrimaryContainer"]:
        raise CannotRender(
            "CloudFormation's model has no path of metrics",
            hint="leave --metrics-path out, or make the endpoint with servetune deploy apply",
        )
    names = _logical_names(deployment)
    conditions = _conditions(deployment)
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"SageMaker endpoint {deployment.endpoint} of {deployment.model}",
        "Parameters": _parameters(deployment, token_secret),
        **({"Conditions": conditions} if conditions else {}),
        "Resources": {
            names[step.kind, step.name]: {
                "Type": _TYPES[step.kind],
                **_depends(step, deployment, names),
                "Properties": _properties(step, deployment, names),
            }
            for step in _steps(deployment)
        },
        "Outputs": {
            "EndpointName": {"Value": _attribute("Endpoint", "EndpointName")},
            _TRIGGERS: {
                "Description": "Alarms of an update, as --rollback-configuration takes them",
                "Value": {"Fn::Sub": _triggers(deployment, names)},
            },
        },
    }


def stack_commands(deployment: Deployment, token_secret: str | None = None) -> list[str]:
    """Lines of a shell that make or change the stack, and delete it."""
    aws, name = f"aws --region {deployment.region}", deployment.endpoint
    given = []
    if "ExecutionRoleArn" not in deployment.only("model").request:
        given.append(f'{_ROLE}="$SAGEMAKER_ROLE_ARN"')
    if needs_token(deployment) and token_secret is None:
        given.append(f'{_SECRET}="$HF_TOKEN_SECRET_ARN"')
    lines = []
    if _scales_copies(deployment):
        given.append(f'{_COPIES}="$copies"')
        component = deployment.only("component").name
        counted = (
            f"{aws} sagemaker describe-inference-component --inference-component-name {component} "
            "--query RuntimeConfig.DesiredCopyCount --output text"
        )
        lines.append(f"copies=$({counted} 2>/dev/null || echo {deployment.hosting.copies})")
    overrides = f" --parameter-overrides {' '.join(given)}" if given else ""
    deploy = f"deploy --stack-name {name} --template-file {TEMPLATE_FILE}{overrides}"
    return [
        *lines,
        f"{aws} cloudformation {deploy}   # costs money",
        f"{aws} cloudformation delete-stack --stack-name {name}   # the cost ends here",
    ]


def rollback_note(deployment: Deployment) -> str:
    """What rolls an update of the stack back, as Markdown."""
    alarms = " and ".join(f"`{step.name}`" for step in deployment.rollback_alarms)
    if _exchange(deployment):
        which = " of two copies or more" if _scales_copies(deployment) else ""
        return (
            f"An update{which} is rolled back by SageMaker when {alarms} rings: the old settings "
            "serve on."
        )
    aws = f"aws --region {deployment.region} cloudformation"
    stack = f"--stack-name {deployment.endpoint}"
    query = f"Stacks[0].Outputs[?OutputKey=='{_TRIGGERS}'].OutputValue"
    parameters = " ".join(
        f"ParameterKey={key},"
        + ('ParameterValue="$copies"' if key == _COPIES else "UsePreviousValue=true")
        for key in _parameters(deployment, None)
    )
    return (
        "So few copies are exchanged without batches, in which SageMaker watches no alarm. "
        f"CloudFormation itself can watch {alarms} and roll the stack back, with these lines in "
        "place of `deploy` for an update:\n\n```sh\n"
        f'triggers=$({aws} describe-stacks {stack} --query "{query}" --output text)\n'
        f"{aws} update-stack {stack} --template-body file://{TEMPLATE_FILE} "
        f'--rollback-configuration "$triggers" --parameters {parameters}\n```'
    )


def _steps(deployment: Deployment) -> tuple[Step, ...]:
    return (*deployment.steps, *deployment.rollback_alarms)


def _from_hub(deployment: Deployment) -> bool:
    return "ModelDataSource" not in deployment.only("model").request["PrimaryContainer"]


def _scales_copies(deployment: Deployment) -> bool:
    """Whether autoscaling chooses the copies, which an update must not set back."""
    return deployment.hosting.copies is not None and deployment.hosting.scaling is not None


def _parameters(deployment: Deployment, token_secret: str | None) -> JsonObject:
    role = deployment.only("model").request.get("ExecutionRoleArn")
    found: JsonObject = {
        _ROLE: {
            "Type": "String",
            "Description": "ARN of the role that the containers run as",
            "AllowedPattern": r"^arn:aws[a-z\-]*:iam::\d{12}:role/.+$",
            **({"Default": role} if role else {}),
        }
    }
    if _from_hub(deployment):
        needed = needs_token(deployment)
        arn = r"arn:aws[a-z\-]*:secretsmanager:[a-z0-9\-]+:\d{12}:secret:\S+"
        default = token_secret if token_secret is not None or needed else ""
        found[_SECRET] = {
            "Type": "String",
            "Description": "ARN of the secret in Secrets Manager whose text is the token of the "
            "hub" + ("" if needed else "; empty for a model that needs none"),
            "AllowedPattern": f"^{arn}$" if needed else f"^({arn})?$",
            **({} if default is None else {"Default": default}),
        }
    if _scales_copies(deployment):
        found[_COPIES] = {
            "Type": "Number",
            "Description": "Copies that the component begins with; in an update those that "
            "autoscaling has chosen",
            "MinValue": 0,
            "Default": deployment.hosting.copies,
        }
    return found


def _conditions(deployment: Deployment) -> JsonObject:
    """What depends on parameters: the token, and whether there are copies enough for batches."""

    def none_of(parameter: str, *values: str) -> JsonObject:
        each = [{"Fn::Equals": [{"Ref": parameter}, value]} for value in values]
        return {"Fn::Not": each if len(each) == 1 else [{"Fn::Or": each}]}

    found = {}
    if _from_hub(deployment):
        found[_HAS_TOKEN] = none_of(_SECRET, "")
    if _scales_copies(deployment) and _exchange(deployment):
        found[_IN_BATCHES] = none_of(_COPIES, "0", "1")
    return found


def _logical_names(deployment: Deployment) -> dict[tuple[str, str], str]:
    """Names of the resources in the template; a second one of a kind has a number."""
    found: dict[tuple[str, str], str] = {}
    for kind in _TYPES:
        stem = "".join(part.title() for part in kind.split("-"))
        of_kind = [step for step in _steps(deployment) if step.kind == kind]
        for number, step in enumerate(of_kind, start=1):
            found[kind, step.name] = stem if number == 1 else f"{stem}{number}"
    return found


def _depends(step: Step, deployment: Deployment, names: dict[tuple[str, str], str]) -> JsonObject:
    """The order that no reference tells: a component is there before what stands on it."""
    if step.kind not in ("scalable-target", "adapter"):
        return {}
    kind = "endpoint" if deployment.hosting.copies is None else "component"
    return {"DependsOn": names[kind, deployment.only(kind).name]}


def _attribute(logical: str, name: str) -> JsonObject:
    return {"Fn::GetAtt": [logical, name]}


def _properties(
    step: Step, deployment: Deployment, names: dict[tuple[str, str], str]
) -> JsonObject:
    held, hosting = dict(step.request), deployment.hosting
    if step.kind == "model":
        held[_ROLE] = {"Ref": _ROLE}
        held["PrimaryContainer"] = _with_token(held["PrimaryContainer"])
    elif step.kind == "endpoint-config":
        held["ProductionVariants"] = [_linked(each) for each in held["ProductionVariants"]]
        if hosting.copies is not None:
            held[_ROLE] = {"Ref": _ROLE}
    elif step.kind == "endpoint":
        held["EndpointConfigName"] = _attribute("EndpointConfig", "EndpointConfigName")
        if hosting.scaling:  # else an update would undo what autoscaling chose
            held["RetainAllVariantProperties"] = True
        if hosting.copies is None:
            held["DeploymentConfig"] = _exchange(deployment) | _alarms(deployment, names)
    elif step.kind in ("component", "adapter"):
        held |= _of_component(held)
        if step.kind == "component" and _scales_copies(deployment):
            held["RuntimeConfig"] = {"CopyCount": {"Ref": _COPIES}}
        exchange = _exchange(deployment) if step.kind == "component" else {}
        if exchange:
            config = exchange | _alarms(deployment, names)
            scaled = _scales_copies(deployment)
            held["DeploymentConfig"] = (
                {"Fn::If": [_IN_BATCHES, config, _ABSENT]} if scaled else config
            )
    elif step.kind == "scaling-policy":
        for name in ("ServiceNamespace", "ResourceId", "ScalableDimension"):
            del held[name]
        held["ScalingTargetId"] = {"Ref": "ScalableTarget"}
    elif step.kind == "alarm":
        policy = names["scaling-policy", from_zero_policy(deployment.endpoint)]
        held["AlarmActions"] = [{"Ref": policy}]
    return held


def _of_component(request: JsonObject) -> JsonObject:
    """The endpoint and the models of a component, or the files of an adapter, as references."""
    linked: JsonObject = {"EndpointName": _attribute("Endpoint", "EndpointName")}
    if "Specification" in request:
        return {**linked, "Specification": _linked(request["Specification"])}
    return {**linked, "Specifications": [_linked(each) for each in request["Specifications"]]}


def _linked(part: JsonObject) -> JsonObject:
    """A variant or a component's specification, with its model as a reference."""
    return {**part, "ModelName": _attribute("Model", "ModelName")} if "ModelName" in part else part


def _with_token(container: JsonObject) -> JsonObject:
    """A container that loads from the hub with its token, which CloudFormation keeps nowhere.

    A dynamic reference may stand in any property, and is the whole text of the secret where no key
    is named (AWS Secrets Manager user guide, "Get a secret in a CloudFormation resource").
    """
    if "ModelDataSource" in container:
        return container
    read = {"Fn::Sub": f"{{{{resolve:secretsmanager:${{{_SECRET}}}}}}}"}
    token = {"Fn::If": [_HAS_TOKEN, read, _ABSENT]}
    return {**container, "Environment": {**container["Environment"], "HF_TOKEN": token}}


def _exchange(deployment: Deployment) -> JsonObject:
    """How an update exchanges instances or copies; empty for copies too few for batches.

    A batch has 5 to 50% of what runs, whatever autoscaling has chosen. Instances that are too few
    are exchanged all at once, for new ones beside them; a copy alone, by `_IN_BATCHES`, without a
    policy.
    """
    hosting = deployment.hosting
    begun = hosting.instance_count if hosting.copies is None else hosting.copies
    fewest = min(begun, hosting.scaling.minimum) if hosting.scaling else begun
    most = max(begun, hosting.scaling.maximum) if hosting.scaling else begun
    if _scales_copies(deployment):
        fewest = max(2, fewest)
    unit = "INSTANCE_COUNT" if hosting.copies is None else "COPY_COUNT"
    batch = batch_of_any(fewest, most, largest=hosting.copies is None)
    if batch is not None:
        return rolling_update(unit, batch, MOST_ROLLOUT_S)
    return all_at_once(MOST_ROLLOUT_S) if hosting.copies is None else {}


def _alarms(deployment: Deployment, names: dict[tuple[str, str], str]) -> JsonObject:
    """The alarms that roll back, which are there before what they watch."""
    alarms = [
        {"AlarmName": {"Ref": names[step.kind, step.name]}} for step in deployment.rollback_alarms
    ]
    return {"AutoRollbackConfiguration": {"Alarms": alarms}}


def _triggers(deployment: Deployment, names: dict[tuple[str, str], str]) -> str:
    """Alarms that roll the stack back, in the short form of the AWS CLI."""
    each = [
        f"{{Arn=${{{names[step.kind, step.name]}.Arn}},Type=AWS::CloudWatch::Alarm}}"
        for step in deployment.rollback_alarms
    ]
    return f"RollbackTriggers=[{','.join(each)}],MonitoringTimeInMinutes=5"
