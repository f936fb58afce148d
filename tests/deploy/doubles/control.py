"""SageMaker's control plane: what exists, and how it changes as time passes.

Nothing moves by itself: every state is a function of a clock that is passed in, so a wait
of half an hour takes no time in a test. Requests are held against botocore's model, enums,
patterns and upper bounds included, and answers against their required members.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from botocore_check import problems, service

ACCOUNT = "123456789012"
ROLLED_BACK = "Endpoint update failed and was rolled back"

Request = dict[str, Any]

#: kind -> (member that names it, word in its ARN)
KINDS = {
    "Model": ("ModelName", "model"),
    "EndpointConfig": ("EndpointConfigName", "endpoint-config"),
    "Endpoint": ("EndpointName", "endpoint"),
    "InferenceComponent": ("InferenceComponentName", "inference-component"),
    "TrainingPlan": ("TrainingPlanName", "training-plan"),
    "ProcessingJob": ("ProcessingJobName", "processing-job"),
}


#: Accelerators of an instance (AWS, "Amazon EC2 G6/G5 instances"); of other types nothing is
#: known here, and no rule of capacity holds.
DEVICES = {"ml.g6.12xlarge": 4, "ml.g5.12xlarge": 4}

NO_ROOM = "Not enough capacity on the instances of the endpoint for the copies of the component."


class Refusal(Exception):
    """An error answer of the service."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


class ControlPlane:
    """What exists.

    Attributes:
        now_s: The clock.
        create_s: From asking to InService for an endpoint whose capacity is there.
        copy_s: For one copy of a component; copies start one after another.
        delete_s: From asking to gone.
        update_s: Of a rolling update.
        no_capacity: Instance types that cannot be had; found out after the provision
            time-out, or half an hour where none was set.
        unhealthy: Words in a model's environment or image that keep its container from
            answering.
        lag_s: Seconds until what was made is seen by requests that rest on it: "the response
            might not reflect the results of a recently completed write operation" (CreateEndpoint,
            API reference, November 2026).
        quota: Instances allowed by type; 20 where none is set.
        rows: (kind, name) -> what is known.
        targets: Scalable targets by resource id, of Application Auto Scaling.
        alarms: Alarms by name, of CloudWatch.
        ringing: Names of alarms that ring as soon as an update has begun.
        hub: Models of JumpStart's public hub, by name, with their documents.
        jobs: What answers for AI workloads and jobs.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self.create_s, self.copy_s = 300.0, 240.0
        self.delete_s, self.update_s = 90.0, 600.0
        self.job_s = 600.0
        self.lag_s = 0.0
        self.no_capacity: set[str] = set()
        self.unhealthy: set[str] = set()
        self.quota: dict[str, int] = {}
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        self.tags: dict[str, dict[str, str]] = {}
        self.made: Counter[tuple[str, str]] = Counter()
        self.page_size = 100
        self.targets: dict[str, Any] = {}
        self.alarms: dict[str, Any] = {}
        self.ringing: set[str] = set()
        self.hub: dict[str, Any] = {}
        self.jobs: Any = None

    def answer(self, operation: str, request: Request) -> Request:
        wrong = problems(operation, request)
        if wrong:
            raise Refusal("ValidationException", f"1 validation error detected: {wrong[0]}")
        self._settle()
        method = getattr(self, snake(operation), getattr(self.jobs, snake(operation), None))
        if method is None:
            raise Refusal("UnknownOperationException", operation)
        answer: Request = method(request) or {}
        shape = service().operation_model(operation).output_shape
        missing = [name for name in (shape.required_members if shape else ()) if name not in answer]
        assert not missing, f"the double's {operation} lacks {missing}"
        return answer

    # what every kind shares

    def arn(self, kind: str, name: str) -> str:
        return f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:{KINDS[kind][1]}/{name}"

    def row(self, kind: str, name: str) -> dict[str, Any]:
        row = self.rows.get((kind, name.rsplit("/", 1)[-1]))
        if row is None:
            words = KINDS[kind][1].replace("-", " ")
            raise Refusal(
                "ValidationException", f'Could not find {words} "{self.arn(kind, name)}".'
            )
        return row

    def visible(self, kind: str, name: str) -> dict[str, Any]:
        """The row, once whoever asks sees it."""
        row = self.row(kind, name)
        if self.lag_s and self.now_s() - row["made"] < self.lag_s:
            words = KINDS[kind][1].replace("-", " ")
            raise Refusal(
                "ValidationException", f'Could not find {words} "{self.arn(kind, name)}".'
            )
        return row

    def put(self, kind: str, request: Request, **more: Any) -> Request:
        name = request[KINDS[kind][0]]
        if (kind, name) in self.rows:
            words = KINDS[kind][1].replace("-", " ")
            raise Refusal(
                "ValidationException",
                f'Cannot create already existing {words} "{self.arn(kind, name)}".',
            )
        tags = {tag["Key"]: tag["Value"] for tag in request.get("Tags", [])}
        self.tags[self.arn(kind, name)] = tags
        held = {key: value for key, value in request.items() if key != "Tags"}
        now_s = self.now_s()
        self.rows[kind, name] = {"request": held, "since": now_s, "made": now_s, **more}
        self.made[kind, name] += 1
        return {f"{kind}Arn": self.arn(kind, name)}

    def stand(self, endpoint: str, *components: str) -> None:
        """An endpoint that has been in service for long, as somebody else made it."""
        model, config = f"{endpoint}-model", f"{endpoint}-config"
        variant = {"VariantName": "AllTraffic", "InstanceType": "ml.g6.12xlarge"}
        alone = {} if components else {"ModelName": model}
        image = {"PrimaryContainer": {"Image": "i", "Environment": {}}}
        for kind, request in (
            ("Model", {"ModelName": model, **image}),
            ("EndpointConfig",
             {"EndpointConfigName": config, "ProductionVariants": [variant | alone]}),
            ("Endpoint", {"EndpointName": endpoint, "EndpointConfigName": config}),
        ):  # fmt: skip
            self.put(kind, request)
        for name in components:
            specification = {"ModelName": model}
            self.put(
                "InferenceComponent",
                {"InferenceComponentName": name, "EndpointName": endpoint,
                 "Specification": specification},
                copies=1, had=1,
            )  # fmt: skip
        for row in self.rows.values():
            row["since"] -= 86400.0

    def drop(self, kind: str, name: str) -> None:
        self.row(kind, name)
        del self.rows[kind, name]
        self.tags.pop(self.arn(kind, name), None)

    def about(self, kind: str, name: str) -> Request:
        row = self.row(kind, name)
        return {
            **row["request"],
            f"{kind}Arn": self.arn(kind, name),
            "CreationTime": row.get("created", row["since"]),
            "LastModifiedTime": row["since"],
        }

    def page(self, key: str, items: list[Request], request: Request) -> Request:
        start = int(request.get("NextToken") or 0)
        size = min(self.page_size, request.get("MaxResults", self.page_size))
        answer: Request = {key: items[start : start + size]}
        if start + size < len(items):
            answer["NextToken"] = str(start + size)
        return answer

    def named(self, kind: str, request: Request) -> list[str]:
        part = request.get("NameContains", "")
        return sorted(name for held, name in self.rows if held == kind and part in name)

    def _settle(self) -> None:
        """What was deleting for long enough is gone."""
        for (kind, name), row in list(self.rows.items()):
            deleting = row.get("deleting")
            if deleting is not None and self.now_s() - deleting >= self.delete_s:
                self.drop(kind, name)

    # tags

    def list_tags(self, request: Request) -> Request:
        tags = self.tags.get(request["ResourceArn"])
        if tags is None:
            raise Refusal("ValidationException", f"Could not find {request['ResourceArn']}")
        return {"Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}

    def add_tags(self, request: Request) -> Request:
        held = self.tags.setdefault(request["ResourceArn"], {})
        held.update({tag["Key"]: tag["Value"] for tag in request["Tags"]})
        return {"Tags": request["Tags"]}

    # models and configurations

    def create_model(self, request: Request) -> Request:
        """Licensed files of JumpStart need consent (hashicorp/terraform-provider-aws, 34795)."""
        source = request["PrimaryContainer"].get("ModelDataSource", {}).get("S3DataSource", {})
        uri, consent = source.get("S3Uri", ""), source.get("ModelAccessConfig", {})
        if uri.startswith("s3://jumpstart-private-cache-") and not consent.get("AcceptEula"):
            raise Refusal(
                "ValidationException",
                "The AcceptEula value must be explicitly defined as True in order to accept the "
                f'end-user license agreement (EULA) that this "{uri}" model requires.',
            )
        return self.put("Model", request)

    def describe_hub_content(self, request: Request) -> Request:
        """JumpStart's public hub: names of `hub`, with their documents."""
        name = request["HubContentName"]
        if request["HubName"] != "SageMakerPublicHub" or name not in self.hub:
            raise Refusal("ResourceNotFound", f"Hub content {name} does not exist")
        arn = f"arn:aws:sagemaker:us-east-1:aws:hub-content/SageMakerPublicHub/Model/{name}/1.0.0"
        return {
            "HubContentName": name, "HubContentArn": arn, "HubContentVersion": "1.0.0",
            "HubContentType": "Model", "DocumentSchemaVersion": "2.2.0",
            "HubName": "SageMakerPublicHub", "HubArn": arn.partition("/Model/")[0],
            "HubContentDocument": json.dumps(self.hub[name]), "HubContentStatus": "Available",
            "CreationTime": 0.0,
        }  # fmt: skip

    def describe_model(self, request: Request) -> Request:
        return self.about("Model", request["ModelName"])

    def list_models(self, request: Request) -> Request:
        items = [self._summary("Model", name) for name in self.named("Model", request)]
        return self.page("Models", items, request)

    def delete_model(self, request: Request) -> None:
        self.drop("Model", request["ModelName"])

    def create_endpoint_config(self, request: Request) -> Request:
        for variant in request["ProductionVariants"]:
            if ("InstanceType" in variant) == ("InstancePools" in variant):
                raise Refusal("ValidationException", "Exactly one of InstanceType, InstancePools")
            if "ModelName" in variant:
                self.visible("Model", variant["ModelName"])
            elif "ExecutionRoleArn" not in request:
                raise Refusal(
                    "ValidationException", "ExecutionRoleArn is needed for a variant without model"
                )
        return self.put("EndpointConfig", request)

    def describe_endpoint_config(self, request: Request) -> Request:
        return self.about("EndpointConfig", request["EndpointConfigName"])

    def list_endpoint_configs(self, request: Request) -> Request:
        names = self.named("EndpointConfig", request)
        items = [self._summary("EndpointConfig", name) for name in names]
        return self.page("EndpointConfigs", items, request)

    def delete_endpoint_config(self, request: Request) -> None:
        self.drop("EndpointConfig", request["EndpointConfigName"])

    def _summary(self, kind: str, name: str) -> Request:
        return {
            KINDS[kind][0]: name,
            f"{kind}Arn": self.arn(kind, name),
            "CreationTime": self.rows[kind, name]["since"],
        }

    # endpoints

    def create_endpoint(self, request: Request) -> Request:
        self.visible("EndpointConfig", request["EndpointConfigName"])
        for variant in self._variants(request["EndpointConfigName"]):
            pools = variant.get("InstancePools") or [variant]
            for pool in pools:
                self._within_quota(pool["InstanceType"], variant.get("InitialInstanceCount", 1))
        return self.put("Endpoint", request, created=self.now_s())

    def describe_endpoint(self, request: Request) -> Request:
        name = request["EndpointName"]
        row = self.visible("Endpoint", name)
        status, reason, config = self._endpoint_state(row)
        about = self.about("Endpoint", name)
        about |= {"EndpointStatus": status, "EndpointConfigName": config}
        if reason:
            about["FailureReason"] = reason
        if status in ("InService", "Updating", "RollingBack"):
            about["ProductionVariants"] = [
                {
                    "VariantName": variant["VariantName"],
                    "CurrentInstanceCount": count,
                    "DesiredInstanceCount": count,
                }
                for variant in self._variants(config)
                for count in [self._instances(name, row, variant)]
            ]
        return about

    def list_endpoints(self, request: Request) -> Request:
        items = []
        for name in self.named("Endpoint", request):
            about = self.describe_endpoint({"EndpointName": name})
            items.append(
                {
                    key: about[key]
                    for key in (
                        "EndpointName",
                        "EndpointArn",
                        "EndpointStatus",
                        "CreationTime",
                        "LastModifiedTime",
                    )
                }
            )
        return self.page("Endpoints", items, request)

    def update_endpoint(self, request: Request) -> Request:
        name = request["EndpointName"]
        row = self.row("Endpoint", name)
        if self._endpoint_state(row)[0] != "InService":
            raise Refusal("ValidationException", f"Cannot update in-progress endpoint {name}.")
        new = self.visible("EndpointConfig", request["EndpointConfigName"])["request"]
        (old,), (variant,) = (
            self._variants(row["request"]["EndpointConfigName"]),
            new["ProductionVariants"],
        )
        count = self._instances(name, row, old)
        deploying = request.get("DeploymentConfig", {})
        self._deploys(deploying, count, request["EndpointConfigName"])
        self._keeps_type_while_scaled(name, old, variant)
        keeps = request.get("RetainAllVariantProperties", False)
        after = count if keeps else variant.get("InitialInstanceCount", 1)
        rolling = deploying.get("RollingUpdatePolicy", {}).get("MaximumBatchSize")
        beside = min(after, rolling["Value"]) if rolling else after  # else all at once, blue/green
        for pool in variant.get("InstancePools") or [variant]:
            self._within_quota(pool["InstanceType"], beside)
        most = max(after, self._most_instances(variant))
        fits = self._needed(name, variant) <= most
        row["update"] = {
            "to": request["EndpointConfigName"], "at": self.now_s(),
            "counts": {variant["VariantName"]: count} if keeps else {},
            "rings": self._rings(deploying) if fits else NO_ROOM,
        }  # fmt: skip
        return {"EndpointArn": self.arn("Endpoint", name)}

    def update_endpoint_weights_and_capacities(self, request: Request) -> Request:
        name = request["EndpointName"]
        if self._endpoint_state(self.row("Endpoint", name))[0] != "InService":
            raise Refusal("ValidationException", f"Cannot update in-progress endpoint {name}.")
        (wanted,) = request["DesiredWeightsAndCapacities"]
        self.scale(name, wanted["DesiredInstanceCount"])
        return {"EndpointArn": self.arn("Endpoint", name)}

    def scale(self, endpoint: str, count: int) -> None:
        """What autoscaling does to an endpoint's variant."""
        self.row("Endpoint", endpoint).setdefault("counts", {})["AllTraffic"] = count

    def _instances(self, endpoint: str, row: dict[str, Any], variant: Request) -> int:
        """Instances of a variant, with those that managed scaling adds for copies.

        "SageMaker AI will automatically launch another instances because we enabled
        ManagedInstanceScaling"; "SageMaker AI will launch 1 additional instance for the rolling
        deployment", and "terminate" it afterwards (aws-samples/sagemaker-genai-hosting-examples,
        03-features/deployment/ic_rolling_deployment.ipynb, commit 399f6c5).
        """
        count = self._count(row, variant)
        needed = self._needed(endpoint, variant)
        return max(count, min(needed, self._most_instances(variant)))

    @staticmethod
    def _most_instances(variant: Request) -> int:
        """Instances to which managed scaling may go by itself; 0 where it is off."""
        managed = variant.get("ManagedInstanceScaling", {})
        return int(managed["MaxInstanceCount"]) if managed.get("Status") == "ENABLED" else 0

    def _needed(self, endpoint: str, variant: Request, *, more: int = 0) -> int:
        """Instances that the copies of an endpoint fill, those of a batch that moves in included.

        Args:
            endpoint: Its name.
            variant: Variant, for the instance type.
            more: Copies of the last component beside those that there are.
        """
        devices = DEVICES.get((variant.get("InstancePools") or [variant])[0]["InstanceType"])
        if devices is None:
            return 0
        filled = 0.0
        for name in self._components_of(endpoint):
            row = self.rows["InferenceComponent", name]
            each = (row["request"].get("Specifications") or [row["request"]["Specification"]])[0]
            taken = each.get("ComputeResourceRequirements", {}).get(
                "NumberOfAcceleratorDevicesRequired"
            )
            if taken and "failed" not in row and "deleting" not in row:
                copies = row["copies"] + row.get("update", {}).get("batch", 0) + more
                filled += copies / (devices // int(taken))
        return math.ceil(filled)

    def _has_room(self, endpoint: str, *, more: int = 0) -> bool:
        """Whether so many more copies have a place, on instances that may be added for them.

        A batch is provisioned before the old one goes (InferenceComponentRollingUpdatePolicy), and
        an instance that is added counts against the quota as any other.
        """
        row = self.row("Endpoint", endpoint)
        (variant,) = self._variants(row["request"]["EndpointConfigName"])
        count, needed = self._count(row, variant), self._needed(endpoint, variant, more=more)
        if needed <= count:
            return True
        kind = (variant.get("InstancePools") or [variant])[0]["InstanceType"]
        left = self.quota.get(kind, 20) - self._used(kind)
        return needed <= self._most_instances(variant) and needed - count <= left

    @staticmethod
    def _count(row: dict[str, Any], variant: Request) -> int:
        """Instances of a variant: as scaled or kept, else as its configuration begins."""
        first = variant.get("InitialInstanceCount", 1)
        return int(row.get("counts", {}).get(variant["VariantName"], first))

    def _deploys(self, config: Request, count: int, to: str) -> None:
        """Rules of a deployment's batches (SageMaker API reference, November 2026).

        RollingUpdatePolicy: the batch is 5% to 50% of the variant's total instance count;
        TrafficRoutingConfig: a canary at most 50%, a linear step 10% to 50%; DeploymentConfig:
        one update policy at most; AutoRollbackConfig: alarms "in your account".
        """
        if {"BlueGreenUpdatePolicy", "RollingUpdatePolicy"} <= set(config):
            raise Refusal("ValidationException", "Only one update policy may be given")
        if "RollingUpdatePolicy" in config:
            self._share(config["RollingUpdatePolicy"]["MaximumBatchSize"], count, 0.05, 0.5)
            policy = config["RollingUpdatePolicy"]
        elif "BlueGreenUpdatePolicy" in config:
            policy = config["BlueGreenUpdatePolicy"]
            traffic = policy["TrafficRoutingConfiguration"]
            if traffic["Type"] == "CANARY":
                self._share(traffic["CanarySize"], count, 0.0, 0.5)
            if traffic["Type"] == "LINEAR":
                self._share(traffic["LinearStepSize"], count, 0.1, 0.5)
            # "The timeout should be larger than the total waiting time" (BlueGreenUpdatePolicy).
            waits = traffic["WaitIntervalInSeconds"] + policy.get("TerminationWaitInSeconds", 0)
            if policy.get("MaximumExecutionTimeoutInSeconds", 1e9) <= waits:
                raise Refusal("ValidationException", f"{to}: the timeout is below the waiting time")
        self._has_alarms(config)

    @staticmethod
    def _share(size: Request, count: int, low: float, high: float) -> None:
        share = size["Value"] / (100 if size["Type"] == "CAPACITY_PERCENT" else count)
        if count < 2 or not low <= share <= high:
            raise Refusal(
                "ValidationException",
                f"Batch size {size['Value']} ({size['Type']}) must be between {low:.0%} and "
                f"{high:.0%} of the total count of {count}",
            )

    def _has_alarms(self, config: Request) -> None:
        for alarm in config.get("AutoRollbackConfiguration", {}).get("Alarms", []):
            if alarm["AlarmName"] not in self.alarms:
                raise Refusal("ValidationException", f"Alarm {alarm['AlarmName']} does not exist")

    def _rings(self, config: Request) -> str:
        """The alarm that rings during an update which watches it; empty for none."""
        watched = config.get("AutoRollbackConfiguration", {}).get("Alarms", [])
        return next((a["AlarmName"] for a in watched if a["AlarmName"] in self.ringing), "")

    def _keeps_type_while_scaled(self, name: str, old: Request, new: Request) -> None:
        """An update of the instance type fails while the variant is a target of autoscaling.

        SageMaker developer guide, "Update endpoints that use auto scaling", November 2026.
        """
        kinds = [each.get("InstancePools") or each["InstanceType"] for each in (old, new)]
        resource = f"endpoint/{name}/variant/{old['VariantName']}"
        if kinds[0] != kinds[1] and resource in self.targets:
            raise Refusal(
                "ValidationException",
                f"The variant of {resource} is a scalable target: deregister it before its "
                "instance type changes",
            )

    def delete_endpoint(self, request: Request) -> None:
        name = request["EndpointName"]
        row = self.row("Endpoint", name)
        status = self._endpoint_state(row)[0]
        if status in ("Creating", "Updating", "RollingBack", "Deleting"):
            raise Refusal("ValidationException", f"Cannot update in-progress endpoint {name}.")
        if self._components_of(name):
            raise Refusal(
                "ValidationException",
                f"Endpoint {name} has inference components; delete them before the endpoint.",
            )
        row["deleting"] = self.now_s()

    def _variants(self, config: str) -> list[Request]:
        variants: list[Request] = self.row("EndpointConfig", config)["request"][
            "ProductionVariants"
        ]
        return variants

    def _endpoint_state(self, row: dict[str, Any]) -> tuple[str, str, str]:
        """Status, reason of failure, and the configuration that is running."""
        config = row["request"]["EndpointConfigName"]
        if "deleting" in row:
            return "Deleting", "", config
        if "failed" in row:
            return "Failed", row["failed"], config
        status, reason, config = self._moving(row, config)
        if status == "Failed":
            row["failed"] = reason  # it stays so, even when capacity comes back
        return status, reason, config

    def _moving(self, row: dict[str, Any], config: str) -> tuple[str, str, str]:
        passed_s = self.now_s() - row["since"]
        wait_s, reason = self._provisioned(config)
        if reason:
            status = "Creating" if passed_s < wait_s else "Failed"
            return status, reason if status == "Failed" else "", config
        if passed_s < wait_s + self.create_s:
            return "Creating", "", config
        sick_s = self._sick_s(config)
        if sick_s is not None:
            failed = passed_s >= wait_s + self.create_s + sick_s
            reason = (
                "The primary container for production variant AllTraffic did not pass the ping "
                "health check. Please check CloudWatch logs for this endpoint."
            )
            return ("Failed", reason, config) if failed else ("Creating", "", config)
        return self._updated(row, config)

    def _updated(self, row: dict[str, Any], config: str) -> tuple[str, str, str]:
        update = row.get("update")
        if update is None:
            return "InService", "", config
        since_s = self.now_s() - update["at"]
        if since_s < self.update_s:
            return "Updating", "", config
        if self._sick_s(update["to"]) is None and not update["rings"]:
            row["counts"] = update["counts"]
            row["request"] = {**row["request"], "EndpointConfigName": update["to"]}
            del row["update"]
            return "InService", "", update["to"]
        if since_s < 2 * self.update_s:
            return "RollingBack", "", config
        rang = f" by alarm {update['rings']}" if update["rings"] else ""
        return "InService", f"{ROLLED_BACK}{rang}", config

    def _provisioned(self, config: str) -> tuple[float, str]:
        """Seconds until capacity is there or given up, and why it was given up."""
        waited_s = 0.0
        for variant in self._variants(config):
            pools = variant.get("InstancePools") or [variant]
            each_s = variant.get("VariantInstanceProvisionTimeoutInSeconds", 1800)
            for pool in sorted(pools, key=lambda pool: pool.get("Priority", 1)):
                if pool["InstanceType"] not in self.no_capacity:
                    break
                waited_s += each_s
            else:
                return waited_s, (
                    "Unable to provision requested ML compute capacity due to "
                    "InsufficientInstanceCapacity error. Please retry using a different ML "
                    "instance type or after some time."
                )
        return waited_s, ""

    def _sick_s(self, config: str) -> float | None:
        """Seconds of health checks in vain; `None` for a container that answers."""
        for variant in self._variants(config):
            if "ModelName" in variant and self._is_sick(variant["ModelName"]):
                return float(variant.get("ContainerStartupHealthCheckTimeoutInSeconds", 600))
        return None

    def _is_sick(self, model: str) -> bool:
        row = self.rows.get(("Model", model))
        container = str(row["request"]["PrimaryContainer"]) if row else ""
        return any(word in container for word in self.unhealthy)

    def _used(self, instance_type: str) -> int:
        """Instances of a type that endpoints hold."""
        return sum(
            self._count(row, variant)
            for (kind, _), row in self.rows.items()
            if kind == "Endpoint" and self._endpoint_state(row)[0] != "Failed"
            for variant in self._variants(row["request"]["EndpointConfigName"])
            if instance_type
            in [pool["InstanceType"] for pool in variant.get("InstancePools") or [variant]]
        )

    def _within_quota(self, instance_type: str, wanted: int) -> None:
        used = self._used(instance_type)
        allowed = self.quota.get(instance_type, 20)
        if used + wanted > allowed:
            raise Refusal(
                "ResourceLimitExceeded",
                f"The account-level service limit '{instance_type} for endpoint usage' is "
                f"{allowed} Instances, with current utilization of {used} Instances and a request "
                f"delta of {wanted} Instances. Please use AWS Service Quotas to request an "
                "increase for this quota.",
            )

    # inference components

    def create_inference_component(self, request: Request) -> Request:
        endpoint = request["EndpointName"]
        state = self._endpoint_state(self.row("Endpoint", endpoint))[0]
        if state != "InService":
            raise Refusal("ValidationException", f"Endpoint {endpoint} is not InService")
        if ("Specification" in request) == ("Specifications" in request):
            raise Refusal("ValidationException", "Exactly one of Specification, Specifications")
        for each in request.get("Specifications") or [request["Specification"]]:
            base = each.get("BaseInferenceComponentName")
            if base:
                state = self._component_state(self.row("InferenceComponent", base))[0]
                if state != "InService":
                    raise Refusal("ValidationException", f"Base component {base} is {state}")
            elif "ComputeResourceRequirements" not in each:
                raise Refusal("ValidationException", "ComputeResourceRequirements are needed")
            elif "ModelName" in each:
                self.row("Model", each["ModelName"])
        copies = request.get("RuntimeConfig", {}).get("CopyCount", 1)
        return self.put("InferenceComponent", request, created=self.now_s(), copies=copies, had=0)

    def describe_inference_component(self, request: Request) -> Request:
        name = request["InferenceComponentName"]
        row = self.row("InferenceComponent", name)
        status, current, reason = self._component_state(row)
        about = self.about("InferenceComponent", name)
        about |= {
            "EndpointArn": self.arn("Endpoint", row["request"]["EndpointName"]),
            "InferenceComponentStatus": status,
            "RuntimeConfig": {"DesiredCopyCount": row["copies"], "CurrentCopyCount": current},
        }
        if reason:
            about["FailureReason"] = reason
        return about

    def list_inference_components(self, request: Request) -> Request:
        items = []
        for name in self.named("InferenceComponent", request):
            about = self.describe_inference_component({"InferenceComponentName": name})
            on = request.get("EndpointNameEquals")
            if on is not None and about["EndpointName"] != on:
                continue
            items.append(
                {
                    "VariantName": "AllTraffic",
                    **{
                        key: about[key]
                        for key in (
                            "InferenceComponentName",
                            "InferenceComponentArn",
                            "EndpointName",
                            "EndpointArn",
                            "InferenceComponentStatus",
                            "CreationTime",
                            "LastModifiedTime",
                        )
                    },
                }
            )
        return self.page("InferenceComponents", items, request)

    def update_inference_component(self, request: Request) -> Request:
        row = self._resting(request["InferenceComponentName"])
        policy = request.get("DeploymentConfig", {}).get("RollingUpdatePolicy", {})
        if policy:  # InferenceComponentRollingUpdatePolicy: 5% to 50% of the copy count
            self._share(policy["MaximumBatchSize"], row["copies"], 0.05, 0.5)
            self._has_alarms(request["DeploymentConfig"])
        is_adapter = "BaseInferenceComponentName" in request.get("Specification", {})
        row["update"] = {
            "from": row["request"],
            "batch": 0 if is_adapter else self._batch(policy, "MaximumBatchSize", row["copies"]),
            "undone": "" if is_adapter else self._undone(request, row, policy),
        }
        for key in ("Specification", "Specifications"):
            if key in request:
                row["request"] = {**row["request"], key: request[key]}
        row |= {"since": self.now_s(), "busy": "Updating", "had": 0}
        row.pop("failed", None)
        return {
            "InferenceComponentArn": self.arn(
                "InferenceComponent", request["InferenceComponentName"]
            )
        }

    @staticmethod
    def _batch(policy: Request, member: str, copies: int) -> int:
        """Copies of a batch; all of them, blue/green, where the policy has no such size."""
        size = policy.get(member)
        return copies if size is None else int(size["Value"])

    def _undone(self, request: Request, row: dict[str, Any], policy: Request) -> str:
        """Reason for which a component's update is rolled back; empty where it is not.

        Without room for a batch beside the old copies it cannot begin. MaximumExecutionTimeout:
        "Exceeding this limit causes a timeout". RollbackMaximumBatchSize: absent, "SageMaker AI
        provisions the entire capacity of the old fleet at once during rollback", so that a rollback
        needs room for all of it.
        """
        copies, name = row["copies"], row["request"]["EndpointName"]
        batch = self._batch(policy, "MaximumBatchSize", copies)
        steps = math.ceil(copies / batch) if batch else 0
        needed_s = steps * policy.get("WaitIntervalInSeconds", 0) + copies * self.copy_s
        if not self._has_room(name, more=batch):
            return NO_ROOM
        rings = self._rings(request.get("DeploymentConfig", {}))
        if needed_s > policy.get("MaximumExecutionTimeoutInSeconds", math.inf):
            rings = "timed out"
        if rings and not self._has_room(
            name, more=self._batch(policy, "RollbackMaximumBatchSize", copies)
        ):
            return "Failed"
        return rings

    def update_inference_component_runtime_config(self, request: Request) -> Request:
        name = request["InferenceComponentName"]
        row = self._resting(name)
        row |= {
            "had": min(row["copies"], request["DesiredRuntimeConfig"]["CopyCount"]),
            "copies": request["DesiredRuntimeConfig"]["CopyCount"],
            "since": self.now_s(),
            "busy": "Updating",
        }
        return {"InferenceComponentArn": self.arn("InferenceComponent", name)}

    def delete_inference_component(self, request: Request) -> None:
        name = request["InferenceComponentName"]
        row = self.row("InferenceComponent", name)
        if self._component_state(row)[0] in ("Creating", "Updating"):
            raise Refusal("ValidationException", f"Cannot update in-progress component {name}.")
        standing = [
            other
            for (kind, other), held in self.rows.items()
            if kind == "InferenceComponent"
            and held["request"].get("Specification", {}).get("BaseInferenceComponentName") == name
        ]
        if standing:
            raise Refusal(
                "ValidationException", f"Adapters stand on {name}; they must be deleted first."
            )
        row.setdefault("deleting", self.now_s())

    def _resting(self, name: str) -> dict[str, Any]:
        row = self.row("InferenceComponent", name)
        if self._component_state(row)[0] not in ("InService", "Failed"):
            raise Refusal("ValidationException", f"Cannot update in-progress component {name}.")
        return row

    def _component_state(self, row: dict[str, Any]) -> tuple[str, int, str]:
        """Status, copies that serve, reason of failure."""
        if "deleting" in row:
            return "Deleting", 0, ""
        specifications = row["request"].get("Specifications") or [row["request"]["Specification"]]
        base = specifications[0].get("BaseInferenceComponentName")
        if base and not self._loads_adapters(base):
            row["failed"] = "Failed to load the adapter: 404 for /v1/load_lora_adapter"
        if "failed" in row:
            return "Failed", 0, row["failed"]
        passed_s = self.now_s() - row["since"]
        for look in (self._ailing, self._undoing, self._unplaced):
            found = look(row, passed_s)
            if found:
                return found
        there = row["had"] + int(passed_s // self.copy_s)
        if there >= row["copies"]:
            row.pop("update", None)
            return "InService", row["copies"], ""
        return row.get("busy", "Creating"), there, ""

    def _ailing(self, row: dict[str, Any], passed_s: float) -> tuple[str, int, str] | None:
        """State of a component whose container never answers."""
        specifications = row["request"].get("Specifications") or [row["request"]["Specification"]]
        if not any(self._is_sick(each.get("ModelName", "")) for each in specifications):
            return None
        limit_s = (
            specifications[0]
            .get("StartupParameters", {})
            .get("ContainerStartupHealthCheckTimeoutInSeconds", 600)
        )
        if passed_s >= limit_s:
            row["failed"] = "The container did not pass the ping health check."
            return "Failed", 0, row["failed"]
        return row.get("busy", "Creating"), 0, ""

    def _undoing(self, row: dict[str, Any], passed_s: float) -> tuple[str, int, str] | None:
        """State of an update that is rolled back, after which the old copies serve on.

        A description has the reason of a failed component alone (DescribeInferenceComponent).
        """
        undone = row.get("update", {}).get("undone")
        if not undone:
            return None
        if passed_s < self.update_s:
            return "Updating", row["copies"], ""
        if undone == "Failed":
            row["failed"] = NO_ROOM
            return "Failed", 0, NO_ROOM
        row |= {"request": row["update"]["from"], "had": row["copies"]}
        del row["update"]
        return "InService", row["copies"], ""

    def _unplaced(self, row: dict[str, Any], passed_s: float) -> tuple[str, int, str] | None:
        """State of new copies that no instance has a place for."""
        if "update" in row or not self._is_crowded(row):
            return None
        if passed_s < 1800:
            return row.get("busy", "Creating"), row["had"], ""
        row["failed"] = NO_ROOM
        return "Failed", 0, NO_ROOM

    def _is_crowded(self, row: dict[str, Any]) -> bool:
        endpoint = row["request"]["EndpointName"]
        return row["had"] < row["copies"] and not self._has_room(endpoint)

    def _loads_adapters(self, base: str) -> bool:
        """Whether a base takes adapters while it runs.

        vLLM's container must be told so (model-hosting-container-standards, "LoRA Adapter
        Management": required with inference components).
        """
        request = self.row("InferenceComponent", base)["request"]
        each = (request.get("Specifications") or [request["Specification"]])[0]
        model = self.rows.get(("Model", each.get("ModelName", "")))
        variables = model["request"]["PrimaryContainer"]["Environment"] if model else {}
        told = variables.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "").lower() in ("true", "1")
        return told or not any(key.startswith("SM_VLLM_") for key in variables)

    def _components_of(self, endpoint: str) -> list[str]:
        return [
            name
            for (kind, name), row in self.rows.items()
            if kind == "InferenceComponent" and row["request"]["EndpointName"] == endpoint
        ]

    # plans and jobs

    def describe_training_plan(self, request: Request) -> Request:
        name = request["TrainingPlanName"].rsplit("/", 1)[-1]
        return {**self.row("TrainingPlan", name)["request"], "TrainingPlanName": name,
                "TrainingPlanArn": self.arn("TrainingPlan", name)}  # fmt: skip

    def create_processing_job(self, request: Request) -> Request:
        return self.put("ProcessingJob", request)

    def describe_processing_job(self, request: Request) -> Request:
        name = request["ProcessingJobName"]
        about = self.about("ProcessingJob", name)
        row = self.row("ProcessingJob", name)
        done = self.now_s() - row["since"] >= self.job_s
        about["ProcessingJobStatus"] = "Completed" if done else "InProgress"
        return about


def snake(operation: str) -> str:
    """`ListObjectsV2` is `list_objects_v2`, `StopAIBenchmarkJob` is `stop_ai_benchmark_job`."""
    words = re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z][a-z0-9]*", operation)
    return "_".join(word.lower() for word in words)
