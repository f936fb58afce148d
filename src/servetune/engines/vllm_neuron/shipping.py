"""Deployment of vLLM on AWS Neuron in the Neuron containers, on Trainium2 and Trainium3.

A tag names the plugin's version, Python, the Neuron SDK and Ubuntu, so each is listed here.

Sources: "PyTorch via Deep Learning Container" of the Neuron documentation 2.33; Dockerfiles of
aws-neuron/deep-learning-containers, whose entry point starts its words (November 2026).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from servetune.engines.shipping import Build, Shipping
from servetune.engines.vllm.shipping import SHIPPING as VLLM
from servetune.plan.plan import Plan

#: Version of the plugin to the tag of its image, newest first.
_TAGS: Mapping[str, str] = MappingProxyType(
    {
        "0.29.0.1.2.0": "0.29.0.1.2.0-neuronx-py314-sdk2.33.0-ubuntu26.04",
        "0.24.0.1.1.0": "0.24.0.1.1.0-neuronx-py313-sdk2.32.0-ubuntu24.04",
        "0.21.0.1.0.0": "0.21.0.1.0.0-neuronx-py313-sdk2.31.0-ubuntu24.04",
    }
)
_NEWEST = next(iter(_TAGS))


def _fill(plan: Plan, _concurrency: int, version: str) -> tuple[Plan, list[str]]:
    known = ", ".join(_TAGS)
    note = f"no image is known with vllm-neuron {version}, those known have {known}: name one"
    return plan, [] if version in _TAGS else [f"{note} with --image"]


SHIPPING = Shipping(
    builds=(
        Build(
            kind="neuron",
            repository="public.ecr.aws/neuron/pytorch-inference-vllm-neuronx",
            tag=lambda version: _TAGS.get(version, _TAGS[_NEWEST]),
            architectures=("neuroncore-v3", "neuroncore-v4"),
        ),
    ),
    usual_version=_NEWEST,
    in_flight=VLLM.in_flight,
    api_key_variable=VLLM.api_key_variable,
    fill=_fill,
)
