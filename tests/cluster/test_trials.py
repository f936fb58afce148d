"""Trials over a real Ray cluster of several nodes, the simulated engine answering over HTTP."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from servetune.cluster.nodes import ClusterNode
from servetune.cluster.placement import ResourceRequest, gpus_of_cluster, is_type, most_gpus
from servetune.errors import InputError
from servetune.hardware import node
from servetune.store import read_journal, read_timelines

SERVE = f"{shlex.quote(sys.executable)} -m servetune.cli.serve_simulated"


def machine(gpus=0, *types, cpus=4):
    return ClusterNode(
        node_id="n", name="n", address="10.0.0.1", cpus=cpus, gpus=gpus, gpu_types=types
    )


class TestNeeds:
    def test_a_server_needs_its_gpus_on_one_node_of_the_type(self):
        need = ResourceRequest(gpus=4, gpu_type="H100")
        assert need.fits(machine(4, "H100"))
        assert not need.fits(machine(2, "H100"))
        assert not need.fits(machine(8, "L4"))
        assert not need.fits(machine(8, "H100", cpus=0))
        assert need.bundles == [{"CPU": 1, "GPU": 4, "accelerator_type:H100": 0.001}, {"CPU": 1}]

    def test_a_server_without_gpus_runs_anywhere(self):
        assert ResourceRequest(gpus=0, gpu_type="H100").fits(machine())
        assert ResourceRequest(gpus=0).bundles == [{"CPU": 1}, {"CPU": 1}]

    @pytest.mark.parametrize(
        ("ray_name", "ours"),
        [("H100", "H100"), ("A100", "A100-40GB"), ("A100-80G", "A100-80GB"), ("V100", "V100-32GB")],
    )
    def test_rays_names_for_gpus_are_understood(self, ray_name, ours):
        assert is_type(ray_name, node(gpu=ours, count=1).device)

    def test_other_gpus_are_not_taken_for_them(self):
        assert not is_type("L4", node(gpu="L40S", count=1).device)
        assert not is_type("H100", node(gpu="H200", count=1).device)

    def test_the_clusters_own_gpus_are_used_where_there_is_one_type(self):
        assert gpus_of_cluster([machine(), machine(4, "L4"), machine(8, "L4")]) == ("L4", 8)
        assert gpus_of_cluster([machine()]) is None
        assert most_gpus([machine(2, "L4"), machine(8, "H100")], "L4") == 2
        with pytest.raises(InputError, match="H100, L4"):
            gpus_of_cluster([machine(4, "L4"), machine(8, "H100")])
        with pytest.raises(InputError, match="no known type"):
            gpus_of_cluster([machine(4)])


def words(
    cluster,
    *more,
    speed=20,
    serve=f"{SERVE} {{model}} --gpu L4 --port {{port}}",
    server="max_num_seqs=[2,4,8]",
    client="max_concurrency=[2,4]",
    output_len=24,
):
    load = f"{client};num_prompts=24;random_input_len=200;random_output_len={output_len}"
    return [
        "tune", "--model", "Qwen/Qwen3-4B", "--cluster", cluster.address,
        "--server-cmd", f"{serve} --speed {speed}",
        "--server-args", server,
        "--client-args", load,
        "--output-json", "q.json", *more,
    ]  # fmt: skip


def own_speed(about):
    """Tells the servers of this test from those of others on this machine."""
    return about + os.getpid() * 1e-9


def l4(cluster, count, cpus=4):
    return cluster.add(num_cpus=cpus, num_gpus=count, resources={"accelerator_type:L4": 1})


def places(records):
    return Counter(record.provenance["cluster"]["node"].split(", ")[1][:8] for record in records)


@pytest.fixture
def start():
    """Start servetune as a process, which is gone after the test."""
    started = []

    def start(arguments, folder):
        command = [sys.executable, "-m", "servetune", *arguments]
        run = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
        started.append(run)
        return run

    yield start
    for run in started:
        run.kill()
        run.communicate()


@pytest.mark.ray
class TestOnACluster:
    def test_trials_are_placed_by_gpus_and_come_back_to_one_journal(
        self, ray_cluster, servetune, tmp_path
    ):
        small, large = l4(ray_cluster, 1), l4(ray_cluster, 2)
        other = ray_cluster.add(
            num_cpus=4, num_gpus=4, resources={"accelerator_type:H100": 1}
        )  # fmt: skip
        done = servetune(
            *words(ray_cluster, "--gpu", "L4", server="tensor_parallel_size=[1,2]"), timeout_s=170
        )
        assert done.returncode == 0, done.stderr
        records = read_journal(tmp_path / "q.jsonl")
        assert len({record.key for record in records}) == len(records) == 4
        assert all(record.status == "ok" and record.simulated for record in records)
        assert all(record.results["completed"] == 24 for record in records)
        where = {
            record.config.server_args["tensor_parallel_size"]: record.provenance["cluster"]
            for record in records
        }
        assert large[:8] in where[2]["node"]
        assert len(where[2]["gpus"].split(",")) == 2
        assert len(where[1]["gpus"].split(",")) == 1
        assert not any(other[:8] in each["node"] for each in where.values())
        assert small[:8] in where[1]["node"] or large[:8] in where[1]["node"]
        for record in records:
            assert "SIMULATED" in (tmp_path / record.server_log).read_text()
        assert "[4/4]" in done.stderr
        timelines = read_timelines(tmp_path / "q.timelines.jsonl")
        assert timelines.keys() == {record.key for record in records}
        assert all(each["seen_by_client"] and each["total"] == 24 for each in timelines.values())

    def test_servers_have_the_variables_that_the_user_gives_or_hands_on(
        self, ray_cluster, servetune, tmp_path, monkeypatch
    ):
        l4(ray_cluster, 1)
        seen = tmp_path / "seen"
        script = tmp_path / "serve.sh"
        script.write_text(f'#!/bin/sh\necho "$SAID $KEPT_TOKEN" > {seen}\nexec {SERVE} "$@"\n')
        script.chmod(0o755)
        monkeypatch.setenv("KEPT_TOKEN", "hf_" + "k" * 34)  # which the cluster was begun without
        done = servetune(
            *words(
                ray_cluster, "--server-env", "SAID=plainly", "--server-env", "KEPT_TOKEN",
                serve=f"{script} {{model}} --gpu L4 --port {{port}}",
                server="max_num_seqs=4", client="max_concurrency=2",
            ),
            timeout_s=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert seen.read_text().split() == ["plainly", "hf_" + "k" * 34]
        kept = [path for path in tmp_path.rglob("*") if path.is_file() and path != seen]
        assert not [path for path in kept if "k" * 34 in path.read_text(errors="replace")]
        assert "k" * 34 not in done.stdout + done.stderr

    def test_load_comes_from_another_node_where_the_servers_has_no_core_left(
        self, ray_cluster, servetune, tmp_path
    ):
        server, load = l4(ray_cluster, 1, cpus=1), ray_cluster.add(num_cpus=1)
        done = servetune(
            *words(ray_cluster, "--gpu", "L4", server="max_num_seqs=8", client="max_concurrency=4"),
            timeout_s=170,
        )
        assert done.returncode == 0, done.stderr
        (record,) = read_journal(tmp_path / "q.jsonl")
        cluster = record.provenance["cluster"]
        assert server[:8] in cluster["node"]
        assert cluster["load_node"] == load
        (sender,) = record.results["instrument"]["nodes"]
        assert load[:8] in sender["name"]
        assert record.results["completed"] == 24

    def test_a_node_lost_costs_its_trial_which_runs_again_elsewhere(
        self, ray_cluster, tmp_path, start
    ):
        speed = own_speed(2)
        nodes = [l4(ray_cluster, 1), l4(ray_cluster, 1)]
        run = start(words(ray_cluster, "--gpu", "L4", speed=speed), tmp_path)
        told = []
        while sum("ready after" in line for line in told) < 2:  # each node has a server
            line = run.stderr.readline()
            assert line, "".join(told)
            told.append(line)
        assert is_serving(speed)
        ray_cluster.kill(nodes[0])
        said = "".join(told) + run.stderr.read()
        run.wait(10)
        assert run.returncode == 0, said
        assert "was lost" in said
        records = read_journal(tmp_path / "q.jsonl")
        assert len({record.key for record in records}) == len(records) == 6
        assert all(record.status == "ok" for record in records)
        assert places(records)[nodes[1][:8]] >= 4
        assert nothing_left_of(speed)

    @pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
    def test_a_run_that_is_stopped_leaves_no_server(self, ray_cluster, tmp_path, start, how):
        speed = own_speed(0.2)
        l4(ray_cluster, 1)
        run = start(words(ray_cluster, "--gpu", "L4", speed=speed), tmp_path)
        told = []
        while not any("ready after" in line for line in told):
            line = run.stderr.readline()
            assert line, "".join(told)
            told.append(line)
        assert is_serving(speed)
        run.send_signal(how)
        said = run.stderr.read()
        run.wait(60)
        if how == signal.SIGINT:
            assert run.returncode == 130, said
            assert "--resume" in said
        assert nothing_left_of(speed)

    def test_what_breaks_servers_is_tried_again_and_quarantined_wherever_it_runs(
        self, ray_cluster, servetune, tmp_path
    ):
        l4(ray_cluster, 1)
        l4(ray_cluster, 1)
        done = servetune(
            *words(
                ray_cluster, *("--gpu", "L4", "--order", "interleaved"),
                serve=f"{SERVE} {{model}} --gpu L4 --port {{port}} --oom-at-concurrency 5",
                server="max_num_seqs=[4,8]", client="max_concurrency=[6,7,8]",
                output_len=256,
            ), timeout_s=170,
        )  # fmt: skip
        assert done.returncode == 3, done.stderr
        records = read_journal(tmp_path / "q.jsonl")
        narrow = [r for r in records if r.config.server_args["max_num_seqs"] == 4]
        wide = [r for r in records if r.config.server_args["max_num_seqs"] == 8]
        assert [record.status for record in narrow] == ["ok"] * 3
        # Each job has a worker of its own; failures of the first two spare the third.
        assert [r.failure.kind for r in wide] == ["out_of_memory", "out_of_memory", "quarantined"]
        assert [len(r.provenance.get("attempts", [])) for r in wide[:2]] == [1, 1]
        logs = {record.server_log for record in records if record.server_log}
        assert all((tmp_path / log).exists() for log in logs)

    def test_a_budget_ends_the_run_and_the_rest_is_put_off(self, ray_cluster, servetune, tmp_path):
        l4(ray_cluster, 1)
        speed = own_speed(1)
        begun = words(ray_cluster, "--gpu", "L4", speed=speed)
        done = servetune(*begun, "--budget", "9s", timeout_s=170)
        assert "were put off: the budget of 9.00 s is used up" in done.stderr
        put_off = [r for r in read_journal(tmp_path / "q.jsonl") if r.failure is not None]
        assert put_off
        assert {record.failure.kind for record in put_off} == {"budget"}
        assert nothing_left_of(speed)
        again = servetune(*begun, "--resume", timeout_s=170)
        assert again.returncode == 0, again.stderr
        ok = {r.key for r in read_journal(tmp_path / "q.jsonl") if r.status == "ok"}
        assert len(ok) == 6

    def test_too_few_gpus_are_reported_before_anything_starts(
        self, ray_cluster, servetune, tmp_path
    ):
        l4(ray_cluster, 2)
        done = servetune(
            *words(ray_cluster, "--gpu", "L4", "--num-gpus", "4", server="tensor_parallel_size=4")
        )
        assert done.returncode == 2
        assert done.stderr.startswith(
            "error: a plan needs 4 L4 GPUs on one node, and the cluster has 1 node with 2 L4 GPUs"
        )
        assert not (tmp_path / "q.jsonl").exists()


def is_serving(speed):
    """Whether there is a server with this clock on this machine."""
    listed = subprocess.run(
        ["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True
    )
    return any(
        f"--speed {speed}" in line and "servetune tune" not in line
        for line in listed.stdout.splitlines()
    )


def nothing_left_of(speed):
    """Whether there is none any more, within ten seconds."""
    for _ in range(100):
        if not is_serving(speed):
            return True
        time.sleep(0.1)
    return False
