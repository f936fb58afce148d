"""Devices and cores of a server: what its environment says and what stands before its command."""

import os
import subprocess
import sys

import pytest

from servetune.errors import InputError
from servetune.servers.gpus import DeviceMemory, card_numbers, cards, none_can_be, visible_cards
from servetune.servers.launchers import Placement


@pytest.mark.parametrize(
    ("vendor", "name"),
    [
        ("NVIDIA", "CUDA_VISIBLE_DEVICES"),
        ("AMD", "HIP_VISIBLE_DEVICES"),
        ("AWS", "NEURON_RT_VISIBLE_CORES"),
    ],
)
def test_each_vendor_has_its_variable(vendor, name):
    assert Placement(devices=(2, 3), vendor=vendor).environment({}) == {name: "2,3"}


def test_all_devices_need_no_variable():
    assert Placement().environment({"CUDA_VISIBLE_DEVICES": "4"}) == {}


def test_numbers_are_of_what_servetune_itself_may_see():
    seen = {"CUDA_VISIBLE_DEVICES": "4, 6,GPU-8f"}
    assert Placement(devices=(1, 2)).environment(seen) == {"CUDA_VISIBLE_DEVICES": "6,GPU-8f"}
    with pytest.raises(InputError, match="device 3 is hidden: CUDA_VISIBLE_DEVICES shows 3"):
        Placement(devices=(3,)).environment(seen)


def test_pinned_processes_run_on_their_cores():
    core = max(os.sched_getaffinity(0))
    words = Placement(cpus=(core,)).words_before()
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    said = subprocess.check_output([*words, sys.executable, "-c", code], text=True)
    assert said.strip() == f"[{core}]"


def test_cores_are_written_as_ranges():
    assert Placement(cpus=(7, 0, 1, 2, 9)).words_before()[1:] == ("--cpu-list", "0-2,7,9")


def test_a_numa_node_is_numactls(monkeypatch, tmp_path):
    program = tmp_path / "numactl"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    words = Placement(numa_node=1).words_before()
    assert words == (str(program), "--cpunodebind=1", "--membind=1", "--")
    program.unlink()
    with pytest.raises(InputError, match="numactl is not installed"):
        Placement(numa_node=1).words_before()


class Driver:
    """Cards of 80 GB whose used memory can be set, with NVML's functions."""

    class NVMLError(Exception):
        pass

    class Memory:
        def __init__(self, used):
            self.total, self.used = 80 << 30, used

    class Process:
        def __init__(self, pid):
            self.pid = pid

    def __init__(self, used):
        self.used, self.broken = used, False
        self.nvmlInit = self.begin
        self.nvmlShutdown = lambda: None
        self.nvmlDeviceGetCount = lambda: len(self.used)
        self.nvmlDeviceGetHandleByIndex = lambda number: number
        self.nvmlDeviceGetMemoryInfo = lambda number: self.Memory(self.used[number])
        self.nvmlDeviceGetName = lambda _: b"NVIDIA H100"
        self.nvmlDeviceGetUUID = lambda number: f"GPU-{number}a2b-77"
        self.nvmlDeviceGetComputeRunningProcesses = self.processes

    def begin(self):
        if self.broken:
            raise self.NVMLError

    def processes(self, number):
        return [self.Process(77)] if self.used[number] else []


class Clock:
    now = 0.0

    def now_s(self):
        return self.now

    async def sleep(self, duration_s):
        raise AssertionError

    def pause(self, duration_s):
        self.now += duration_s


def test_the_next_server_waits_until_the_memory_is_free_again():
    driver, clock = Driver([0, 0]), Clock()
    memory = DeviceMemory(lambda: cards(driver), clock=clock, pause=clock.pause)
    driver.used = [60 << 30, 0]

    def pause(duration_s):
        clock.pause(duration_s)
        if clock.now > 3:
            driver.used = [1 << 30, 0]  # what a driver keeps

    memory._pause = pause
    assert memory.await_free((0,)) == []
    assert 3 < clock.now < 4


def test_memory_that_stays_taken_is_named_after_some_patience():
    driver, clock = Driver([0, 0]), Clock()
    memory = DeviceMemory(lambda: cards(driver), clock=clock, pause=clock.pause)
    driver.used = [0, 60 << 30]
    assert memory.await_free((0,)) == [], "another server's device is not waited for"
    assert clock.now == 0
    [card] = memory.await_free((0, 1), patience_s=5)
    assert clock.now == pytest.approx(5, abs=0.2)
    assert card.label == "GPU 1 (NVIDIA H100): 60.00 GiB of 80.00 GiB are taken by process 77"


def test_memory_that_others_held_from_the_start_is_not_waited_for():
    driver, clock = Driver([40 << 30]), Clock()
    memory = DeviceMemory(lambda: cards(driver), clock=clock, pause=clock.pause)
    assert memory.await_free() == []
    assert clock.now == 0


def test_without_a_driver_there_are_no_cards_and_no_waiting():
    driver = Driver([1])
    driver.broken = True
    assert cards(driver) == []
    assert DeviceMemory(lambda: cards(driver)).await_free() == []


def test_cards_are_numbered_as_this_process_sees_them():
    driver = Driver([0, 1 << 30, 2 << 30])
    seen = visible_cards(driver, {"CUDA_VISIBLE_DEVICES": "2,0"})
    assert [(card.number, card.used_bytes >> 30) for card in seen] == [(0, 2), (1, 0)]


def test_cards_may_be_chosen_by_how_their_uuids_begin():
    driver = Driver([0, 1 << 30, 2 << 30])
    seen = visible_cards(driver, {"CUDA_VISIBLE_DEVICES": "GPU-2a,GPU-0a2b-77"})
    assert [(card.number, card.used_bytes >> 30) for card in seen] == [(0, 2), (1, 0)]
    assert visible_cards(driver, {"CUDA_VISIBLE_DEVICES": "MIG-7"}) == [], "a part of a card"


def test_the_energy_of_a_trial_is_of_the_cards_that_its_server_was_given():
    driver = Driver([0, 0, 0, 0])
    given = Placement(devices=(0, 1)).device_names({"CUDA_VISIBLE_DEVICES": "GPU-3a,2,0"})
    assert card_numbers(given, driver) == (3, 2)
    assert card_numbers(("MIG-7",), driver) is None, "a part of a card has no counter of its own"
    assert card_numbers((), driver) is None
    driver.broken = True
    assert card_numbers(("0",), driver) is None


def test_a_machine_without_the_drivers_files_or_with_all_hidden_has_no_gpu(tmp_path):
    assert none_can_be({}, devices=tmp_path)
    (tmp_path / "dxg").touch()
    assert not none_can_be({}, devices=tmp_path), "WSL has a driver of another form"
    assert none_can_be({"CUDA_VISIBLE_DEVICES": ""}, devices=tmp_path)
