"""Containers and jobs, against the parsers of the tools that take them where these are here."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from servetune.errors import InputError
from servetune.servers.launchers import (
    Container,
    Job,
    Placement,
    docker_command,
    kubernetes_job,
    passed_names,
    removal,
    slurm_script,
)
from servetune.servers.launchers.docker import INSPECTED, find_left_containers
from servetune.servers.leftovers import MARKS

SERVE = ("vllm", "serve", "m", "--port", "8000")
PLACE = Placement(devices=(2, 3), cpus=(4, 5), numa_node=1)
BOX = Container(
    image="vllm/vllm-openai:v0.32.0", mounts=(Path("/models"),), hub=Path("/data/huggingface")
)
TUNE = ("servetune", "tune", "--model", "Qwen/Qwen3-4B", "--server-args", "max_num_seqs=[8,16]")


def test_a_container_has_the_servers_words_devices_and_cores():
    words = docker_command(
        BOX,
        SERVE,
        port=8000,
        environment={"HF_HUB_OFFLINE": "1", "VLLM_SERVER_DEV_MODE": "0"},
        passed=("HF_TOKEN", "VLLM_SERVER_DEV_MODE"),
        placement=PLACE,
        environ={},
    )
    assert words == (
        *("docker", "run", "--rm", "--init", "--name=servetune-8000", "--network=host"),
        *("--shm-size=17179869184b", '--gpus="device=2,3"'),
        *("--cpuset-cpus=4,5", "--cpuset-mems=1"),
        *("--volume=/models:/models:ro", "--volume=/data/huggingface:/root/.cache/huggingface"),
        "--env=HF_HOME=/root/.cache/huggingface",
        *("--env=HF_HUB_OFFLINE=1", "--env=HF_TOKEN", "--env=VLLM_SERVER_DEV_MODE"),
        *("--entrypoint=vllm", "vllm/vllm-openai:v0.32.0"),
        *("serve", "m", "--port", "8000"),
    )


def test_a_container_sees_no_device_that_servetune_may_not_see():
    some = {"CUDA_VISIBLE_DEVICES": "5,4,7"}
    assert '--gpus="device=5,4,7"' in docker_command(BOX, SERVE, port=1, environ=some)
    two = Placement(devices=(1, 2))
    words = docker_command(BOX, SERVE, port=1, placement=two, environ=some)
    assert '--gpus="device=4,7"' in words


def test_what_the_user_set_for_the_engine_is_passed_by_name_and_folders_are_not():
    environ = {"HF_TOKEN": "secret", "HF_HOME": "/h", "VLLM_USE_V1": "1", "PATH": "/bin"}
    assert passed_names(environ)[:2] == ("HF_TOKEN", "VLLM_USE_V1")
    assert set(passed_names(environ)[2:]) == set(MARKS)


def test_without_a_choice_it_has_all_devices_and_without_gpus_none():
    assert "--gpus=all" in docker_command(BOX, SERVE, port=1, environ={})
    without = Container(image="i", gpus=False)
    assert not any("--gpus" in word for word in docker_command(without, SERVE, port=1))


@pytest.mark.skipif(shutil.which("docker") is None, reason="the Docker CLI is not installed")
@pytest.mark.parametrize("broken", [False, True])
def test_dockers_own_parser_takes_the_words(broken):
    words = list(
        docker_command(
            BOX, SERVE, port=8000, placement=PLACE, environment={"A": "b=c"}, passed=("HF_TOKEN",)
        )
    )
    if broken:
        words.insert(2, "--no-such-option")
    # No daemon listens there: words that can be read get as far as looking for it.
    done = subprocess.run(
        ["docker", "--host", "tcp://127.0.0.1:9", *words[1:]],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    assert ("unknown flag" in done.stderr) == broken, done.stderr
    assert ("daemon" in done.stderr) != broken, done.stderr


@pytest.mark.skipif(shutil.which("docker") is None, reason="the Docker CLI is not installed")
def test_dockers_own_parser_takes_the_words_that_find_and_end_what_was_left():
    looks = ("ps", "--filter", "name=^servetune-[0-9]+$", "--format", "{{.Names}}")
    asks = ("inspect", "--format", INSPECTED, "servetune-8000")
    here = ("version", "--format", "{{.Server.Version}}")
    runtimes = ("info", "--format", "{{json .Runtimes}}")
    for words in (looks, asks, here, runtimes, removal(8000)[1:]):
        done = subprocess.run(
            ["docker", "--host", "tcp://127.0.0.1:9", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode != 0
        assert "daemon" in done.stderr, done.stderr


def test_without_an_answer_from_docker_nothing_is_left(monkeypatch, tmp_path):
    (tmp_path / "docker").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_left_containers() == []
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_left_containers() == []


def test_a_slurm_script_asks_for_the_machine_and_can_go_on():
    script = slurm_script(
        Job(command=TUNE, gpus=4, gpu_type="h100", limit_s=7200, cpus=32, folder="/shared/my runs")
    )
    options = re.findall(r"^#SBATCH (\S+)$", script, re.MULTILINE)
    assert {"--gres=gpu:h100:4", "--time=121", "--cpus-per-task=32", "--requeue"} <= set(options)
    assert "--signal=TERM@60" in options
    assert script.startswith("#!/bin/bash\n#SBATCH ")
    assert "cd '/shared/my runs'" in script
    assert script.rstrip().endswith("--server-args 'max_num_seqs=[8,16]' --resume")
    checked = subprocess.run(["bash", "-n"], input=script, text=True, check=False)
    assert checked.returncode == 0


def test_what_resumes_already_is_not_told_twice():
    assert slurm_script(Job(command=(*TUNE, "--resume"))).count("--resume") == 1
    assert "--resume" not in slurm_script(Job(command=(*TUNE, "--continue")))
    assert "--resume" in slurm_script(Job(command=(*TUNE, "-c", "8")))


def test_a_kubernetes_job_asks_for_gpus_and_goes_on():
    job = json.loads(
        kubernetes_job(
            Job(command=TUNE, gpus=4, image="me/tune:1", limit_s=3600, folder="results-claim")
        )
    )
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert job["kind"] == "Job"
    assert job["spec"]["activeDeadlineSeconds"] == 3660
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert container["command"] == [*TUNE, "--resume"]
    assert pod["restartPolicy"] == "OnFailure"
    assert {"name": "results", "persistentVolumeClaim": {"claimName": "results-claim"}} in pod[
        "volumes"
    ]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_knows_every_field_of_the_job(tmp_path):
    text = kubernetes_job(Job(command=TUNE, image="me/tune:1", gpu_type="H100", folder="c"))
    path = tmp_path / "job.json"
    path.write_text(text)
    done = subprocess.run(
        ["kubectl", "label", "--local", "-f", str(path), "seen=yes", "-o", "json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    assert read["metadata"].pop("labels") == {"seen": "yes"}
    said = json.loads(text)
    assert (
        read["spec"]["template"]["spec"]["containers"]
        == (said["spec"]["template"]["spec"]["containers"])
    )


def test_names_and_images_that_cannot_be_are_refused():
    with pytest.raises(InputError, match="is no name of a job"):
        Job(command=TUNE, name="My Job")
    with pytest.raises(InputError, match="needs an image"):
        kubernetes_job(Job(command=TUNE))
