"""What the doctor finds: on machines that are described, and on this one."""

import json
import os
import socket
import subprocess

import msgspec
import pytest

from servetune.api.checks import of_cards, of_docker, of_machine, of_strays
from servetune.servers.gpus import Card
from servetune.servers.launchers import LeftContainer
from servetune.servers.leftovers import OWNER_MARK, Leftover
from servetune.servers.machine import Machine, machine_here, port_holders
from servetune.units import GIB

pytestmark = pytest.mark.xdist_group("processes")

FINE = Machine(
    kernel="Linux 6.1",
    python="3.11.7",
    cpus=16,
    cpus_of_machine=16,
    load_1min=0.3,
    memory_bytes=128 * GIB,
    memory_available_bytes=120 * GIB,
    memory_limit_bytes=None,
    shared_memory_bytes=64 * GIB,
    open_files=1 << 20,
    ports=28_232,
    governor="performance",
    disk_free_bytes={"/models": 500 * GIB},
)


def troubles(findings):
    return [finding for finding in findings if finding.level != "ok"]


def test_a_fine_machine_is_fine():
    assert troubles(of_machine(FINE, gpus=8)) == []


@pytest.mark.parametrize(
    ("changed", "subject", "says"),
    [
        ({"memory_available_bytes": 2 * GIB}, "memory", "2.00 GiB of 128.00 GiB available"),
        ({"memory_limit_bytes": 3 * GIB}, "memory", "3.00 GiB allowed in this container"),
        ({"load_1min": 12.0}, "cores", "12.0 used by other processes"),
        ({"cpus": 1}, "cores", "1 cores of 16: server and load client share a core"),
        ({"shared_memory_bytes": 64 << 20}, "shared memory", "64.00 MiB in /dev/shm"),
        ({"open_files": 1024}, "open files", "at most 1024"),
        ({"ports": 4000}, "ports", "4000 for outgoing connections"),
        ({"governor": "powersave"}, "cores", "powersave"),
        ({"disk_free_bytes": {"/models": 2 * GIB}}, "disk", "2.00 GiB free in /models"),
    ],
)
def test_each_lack_is_named_and_can_be_mended(changed, subject, says):
    [finding] = troubles(of_machine(msgspec.structs.replace(FINE, **changed), gpus=2))
    assert finding.subject == subject
    assert says in finding.message
    assert finding.hint


def card(number=0, used=0, name="NVIDIA L4"):
    processes = (42,) if used else ()
    return Card(
        number=number, name=name, total_bytes=23 * GIB, used_bytes=used, processes=processes
    )


def test_cards_that_are_idle_and_known_are_fine():
    assert troubles(of_cards([card(0), card(1)], [card(0), card(1)], "570.1")) == []


def test_a_busy_card_a_strange_one_and_a_hidden_one_are_told_of():
    here = [card(0, used=20 * GIB), card(1, name="NVIDIA Z9000")]
    busy, strange, hidden = troubles(of_cards(here, here[:1], "570.1"))
    assert "20.00 GiB of 23.00 GiB are taken by process 42" in busy.message
    assert busy.level == "warning"
    assert "Z9000" in strange.message
    assert "1 of 2 GPUs" in hidden.message


def test_no_card_is_no_fault():
    [finding] = of_cards([], [], None)
    assert finding.level == "note"


def test_a_leftover_comes_with_the_command_that_ends_it():
    left = Leftover(
        pid=77,
        owner_pid=12,
        command="vllm serve m",
        log_path="x.log",
        ports=(8000,),
        resident_bytes=3 * GIB,
    )
    box = LeftContainer(
        name="servetune-8000", image="vllm/vllm-openai:v1", pid=78, owner_pid=12, log_path="y.log"
    )
    contained, finding = of_strays([box], [left])
    assert "container servetune-8000 (vllm/vllm-openai:v1)" in contained.message
    assert contained.hint == "docker rm --force servetune-8000"
    assert "process 77 on port 8000 (vllm serve m)" in finding.message
    assert finding.hint == "kill -9 77"


def test_docker_is_looked_at_where_it_is():
    assert of_docker(False, None, gpus=1) == []
    [silent] = of_docker(True, None)
    assert "daemon does not answer" in silent.message
    [blind] = of_docker(True, "28.2", gpus=1, runtimes='{"runc":{}}')
    assert "nvidia-container-toolkit" in blind.hint
    assert troubles(of_docker(True, "28.2", gpus=1, runtimes='{"nvidia":{}}')) == []
    assert troubles(of_docker(True, "28.2")) == []


def test_limits_of_a_container_are_read_in_both_versions(tmp_path):
    for place, text in (
        ("sys/fs/cgroup/memory.max", "max"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
    ):
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert machine_here(root=tmp_path).memory_limit_bytes is None
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("4294967296\n")
    assert machine_here(root=tmp_path).memory_limit_bytes == 4 * GIB


def test_who_listens_on_a_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        [holder] = port_holders(listener.getsockname()[1])
    assert holder.startswith(f"{os.getpid()} (")


def test_this_machine_is_looked_at_in_words_and_in_json(servetune, tmp_path):
    server = subprocess.Popen(["sleep", "600"], env={**os.environ, OWNER_MARK: "999999999:1"})
    try:
        said = servetune("doctor", "--json")
        told = servetune("doctor")
    finally:
        server.kill()
        server.wait()
    found = json.loads(said.stdout)
    assert said.returncode == 1, "a server that was left is a warning"
    subjects = {finding["subject"] for finding in found["findings"]}
    assert {"system", "memory", "cores", "port", "disk", "vllm", "leftover"} <= subjects
    assert found["load"] is None
    assert f"-> kill -9 {server.pid}" in told.stdout
    assert "Traceback" not in said.stderr + told.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_echo_server_streams_what_was_asked_for():
    from servetune.trials.ceiling import load_ceiling

    said = []
    ceiling = load_ceiling(said.append, streams=(4,))
    [rung] = ceiling.rungs
    # Whatever the machine is busy with: every stream was answered whole, no faster than it ticks.
    assert "failed" not in rung.limit
    assert 0 < rung.tokens_per_s <= 1.05 * rung.offered_tokens_per_s == 1.05 * 4 / 0.020
    assert said[0].startswith("4 streams: ")
    assert ceiling.words
