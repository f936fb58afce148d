"""The machine that a request is about, and what it costs: options that verbs share."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from servetune.api.inputs import chosen_node
from servetune.hardware import Node
from servetune.option import NonNegative, option

DeviceCount = Annotated[int, msgspec.Meta(ge=1, le=1024)]
"""Number of devices; no node has more than 1024."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that plans run on."""

    group: ClassVar[str] = "Machine"

    gpu: Annotated[
        str | None, option("GPU type, such as L4.", metavar="NAME", default="what is here")
    ] = None
    num_gpus: Annotated[
        DeviceCount | None,
        option("Number of GPUs.", "--num-gpus", "--gpus", metavar="COUNT", default="1, or all"),
    ] = None
    instance: Annotated[
        str | None,
        option(
            "Instance type instead of --gpu: ml.g6.12xlarge (SageMaker), g6.12xlarge (EC2).",
            metavar="NAME",
        ),
    ] = None
    price_per_hour_usd: Annotated[
        NonNegative | None,
        option(
            "Price of the whole machine, in dollars per hour.",
            "--price-per-hour",
            metavar="USD",
            default="the catalogue's",
        ),
    ] = None

    def node(self, *, or_cpu: bool = False, service: str | None = None) -> Node:
        """The machine that the options name, else the one that is here.

        Args:
            or_cpu: Whether the processor counts as a machine where there is no GPU.
            service: Whose instances and prices: `sagemaker`, `ec2` or `all`.

        Raises:
            UnknownName: There is no such GPU or instance.
            InputError: Nothing is named and nothing is here, or the options contradict.
        """
        return chosen_node(
            gpu=self.gpu,
            num_gpus=self.num_gpus,
            instance_name=self.instance,
            price_per_hour_usd=self.price_per_hour_usd,
            or_cpu=or_cpu,
            service=service,
        )
