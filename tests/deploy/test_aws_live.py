"""Against AWS itself: never run by default (`pytest -m aws`), and only with a role named.

    SERVETUNE_AWS_ROLE=arn:aws:iam::..:role/..  SERVETUNE_AWS_REGION=us-east-1

The first tests read; the last makes one ml.g4dn.xlarge endpoint for some minutes, asks it and
deletes it, for less than two dollars, where SERVETUNE_AWS_SPEND=1 says so.
"""

import asyncio
import datetime as dt
import json
import os

import pytest

from servetune.clock import MonotonicClock
from servetune.deploy import EndpointOptions, endpoint_of
from servetune.deploy.aws import AwsClient, StateFile, apply, check_live, delete, jobs, orphans
from servetune.deploy.aws.account import price_today, quotas
from servetune.deploy.aws.hosted_container import hosted, hosted_plan
from servetune.deploy.aws.resources import Change
from servetune.deploy.deployment import deployment_of, with_tags
from servetune.hardware import instance
from servetune.plan import Plan

pytestmark = pytest.mark.aws
ROLE = os.environ.get("SERVETUNE_AWS_ROLE", "")
REGION = os.environ.get("SERVETUNE_AWS_REGION", "us-east-1")
T4 = "ml.g4dn.xlarge"


@pytest.fixture
def aws():
    if not ROLE:
        pytest.skip("SERVETUNE_AWS_ROLE names no role")
    return AwsClient(REGION, clock=MonotonicClock())


def small():
    plan = Plan(model="Qwen/Qwen3-0.6B", max_model_len=2048, max_num_seqs=8, dtype="float16")
    options = EndpointOptions(
        nodes=(instance(T4, service="sagemaker"),), region=REGION,
        endpoint_name="servetune-live-test", role_arn=ROLE,
    )  # fmt: skip
    return deployment_of(endpoint_of(plan, options))


def test_quota_and_price_of_a_type_are_found(aws):
    assert T4 in asyncio.run(quotas(aws, [T4]))
    price = asyncio.run(price_today(aws, T4, today="2026-11-21"))
    assert price is not None
    assert 0.3 < price.usd_per_hour < 3


def test_the_live_check_reads_and_does_not_stop_a_sound_plan(aws):
    now = dt.datetime.now(dt.UTC)
    findings, _ = asyncio.run(check_live(small(), aws, now=now, hours=1))
    assert [finding.message for finding in findings if finding.level == "stop"] == []


def test_orphans_can_be_listed(aws):
    asyncio.run(orphans(aws, now=dt.datetime.now(dt.UTC), prices={}))


def test_what_is_not_there_is_reported_as_such_by_the_real_services(aws):
    assert asyncio.run(hosted(aws, "servetune-nothing-of-this-name")) is None
    assert jobs.describe(aws.client("sagemaker"), "servetune-nothing-of-this-name") is None


@pytest.mark.skipif(not os.environ.get("SERVETUNE_AWS_SPEND"), reason="it costs money")
def test_an_endpoint_is_made_asked_and_deleted(aws, servetune):
    now = dt.datetime.now(dt.UTC)
    wanted = with_tags(small(), delete_after=(now + dt.timedelta(hours=1)).isoformat())
    try:
        asyncio.run(apply(wanted, Change(aws=aws, state=StateFile(None), on_progress=print)))
        found = asyncio.run(hosted(aws, wanted.endpoint))
        assert found is not None
        assert hosted_plan(found).max_num_seqs == 8
        asked = servetune(
            "bench", "--sagemaker", wanted.endpoint, "--region", REGION, "--model",
            "Qwen/Qwen3-0.6B", "-c", "4", "-n", "40", "--input-tokens", "64",
            "--output-tokens", "16", "--json", timeout_s=600,
        )  # fmt: skip
        assert asked.returncode == 0, asked.stderr
        results = json.loads(asked.stdout)["results"]
        assert results["completed"] == 40
        assert results["mean_ttft_ms"] < results["mean_e2e_latency_ms"]
    finally:
        asyncio.run(
            delete(wanted.endpoint, Change(aws=aws, state=StateFile(None), on_progress=print))
        )
