"""Processes killed with SIGKILL between any two requests, and what the next run makes of it.

The double does a request and never answers, so the process dies where it can know least: it asked,
something was made, and it never heard of it.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aws_kit import ROLE, components, endpoint
from doubles import FakeAws

import forked
from servetune.deploy import render_sagemaker, write
from servetune.deploy.deployment import deployment_of
from servetune.deploy.hosting import Adapter, Scaling
from servetune.deploy.staging.upload import MANIFEST
from servetune.units import MIB

PATIENCE_S = 60

STAGE = """
import asyncio, sys
from pathlib import Path
from servetune.clock import MonotonicClock
from servetune.deploy.aws import AwsClient
from servetune.deploy.staging import model_files, place, stage

aws = AwsClient("us-east-1", clock=MonotonicClock(), threads=True)
asyncio.run(stage(model_files(Path(sys.argv[1])), place("s3://bucket/m/"), aws, model="org/tiny",
                  revision=None, on_progress=print, jobs=1, least_part_bytes=int(sys.argv[2])))
"""


@pytest.fixture
def double() -> Iterator[FakeAws]:
    fake = FakeAws(look_s=300.0)
    yield fake
    fake.close()


def killed(words: list[str], double: FakeAws, folder: Path, *, at: int) -> bool:
    """Run, and kill at the changing request `at`; whether there was one to be killed at."""
    double.silent_after = at
    double.fell_silent.clear()
    process = forked.Process(
        words, cwd=folder, env=os.environ | double.environ, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        while process.poll() is None and not double.fell_silent.wait(0.05):
            pass
        if double.fell_silent.is_set():
            process.send_signal(signal.SIGKILL)
        said, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
        double.silent_after = None
    if double.fell_silent.is_set():
        assert process.returncode == -signal.SIGKILL
        return True
    assert process.returncode == 0, said
    return False


def servetune(*words: str) -> list[str]:
    return [*forked.COMMAND, "deploy", *words]


def rendered(folder: Path) -> int:
    """A bundle with one of everything; how many requests make it."""
    hosting = components(
        adapters=(Adapter(name="fr", artifact_url="s3://bucket/fr.tar.gz"),),
        scaling=Scaling(minimum=0, maximum=4, requests_per_copy=51.2),
    )
    made = endpoint(hosting)
    write(render_sagemaker(made), folder / "b")
    return len(deployment_of(made).steps)


@pytest.mark.slow
def test_an_endpoint_survives_a_kill_at_each_of_its_requests(
    double: FakeAws, tmp_path: Path
) -> None:
    double.control.quota["ml.g6.12xlarge"] = 4
    double.clients()("s3").put_object(Bucket="bucket", Key="fr.tar.gz", Body=b"x")
    count = rendered(tmp_path)
    words = servetune("apply", "b", "--role-arn", ROLE, "--poll-s", "0", "--yes")
    # What stands is found and not made again, so that each run dies one request further on:
    # model, configuration, endpoint, component, adapter; then target, two policies and the alarm,
    # which are put again by each run.
    deaths = 0
    while killed(words, double, tmp_path, at=max(0, deaths - 5)):
        deaths += 1
        assert deaths <= count
    assert deaths == count == 9
    assert set(double.control.made.values()) == {1}
    held = json.loads((tmp_path / "b" / "state.json").read_text())
    assert {entry["status"] for entry in held["entries"]} == {"there"}

    words = servetune("delete", "b", "--poll-s", "0")
    deaths = 0
    while killed(words, double, tmp_path, at=0):
        deaths += 1
        assert deaths <= 7
    assert deaths == 7  # target, alarm, adapter, component, endpoint, configuration, model
    assert double.control.rows == {}
    assert not double.services.targets
    assert not double.services.alarms
    assert not (tmp_path / "b" / "state.json").exists()


@pytest.mark.slow
def test_an_upload_survives_a_kill_at_each_of_its_requests(double: FakeAws, tmp_path: Path) -> None:
    part = MIB
    double.s3.least_part_bytes = part
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    weights = bytes(range(256)) * (3 * part // 256) + b"the end"
    (model / "model.safetensors").write_bytes(weights)
    words = [sys.executable, "-c", STAGE, str(model), str(part)]
    deaths = 0
    while ("bucket", f"m/{MANIFEST}") not in double.s3.objects:
        assert killed(words, double, tmp_path, at=0)
        deaths += 1
        assert deaths <= 8
    # config.json, the upload's beginning, its four parts, its end, and the manifest.
    sent: list[Any] = [name for _, name, _ in double.calls if name in ("PutObject", "UploadPart")]
    assert (deaths, sent.count("UploadPart")) == (8, 4)
    assert double.s3.objects["bucket", "m/model.safetensors"]["body"] == weights
    assert double.s3.uploads == {}
    double.calls.clear()
    subprocess.run(words, env=os.environ | double.environ, check=True, timeout=PATIENCE_S)
    assert double.operations() == ["PutObject"]  # the manifest, once more
