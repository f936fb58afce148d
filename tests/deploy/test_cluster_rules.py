"""Manifests held against what KServe, KEDA, LeaderWorkerSet and the Prometheus operator refuse."""

import copy

import pytest
import yaml
from cluster_rules import kserve_refusals
from rendered import RENDER, SATURATION, served, tuned

from servetune.deploy.launchers import deployable_engines


def inference_service(engine, **more):
    text = RENDER["kserve"](served(tuned(engine), **more)).text("inferenceservice.yaml")
    return next(yaml.safe_load_all(text))


@pytest.mark.parametrize("engine", deployable_engines())
def test_kserve_takes_the_inference_service(engine):
    assert kserve_refusals(inference_service(engine)) == []
    assert kserve_refusals(inference_service(engine, saturation=None)) == []


def test_kserve_would_refuse_what_was_written_before():
    """The old words: a threshold that its webhook does not look at, and a deprecated mode."""
    old = copy.deepcopy(inference_service("vllm"))
    target = old["spec"]["predictor"]["autoScaling"]["metrics"][0]["external"]["target"]
    assert target == {"type": "Value", "value": str(SATURATION.target)}
    target |= {"type": "AverageValue", "averageValue": target.pop("value")}
    assert "the target threshold value should not be empty" in kserve_refusals(old)
    old["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] = "RawDeployment"
    assert any("deprecated" in found for found in kserve_refusals(old))
