import csv
import doctest
import os
from pathlib import Path

import pytest

from servetune.errors import InputError, PlanError, UnknownName
from servetune.hardware import (
    Device,
    catalog,
    cheapest_instance_with,
    device,
    device_names,
    instance,
    instances,
    link,
    load_devices,
    node,
)
from servetune.units import GB, GIB, MIB, TFLOPS


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("L4", "L4"),
        ("NVIDIA L4", "L4"),
        ("l40s", "L40S"),
        ("h100", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("h100 pcie", "H100-PCIe"),
        ("A100-80GB", "A100-80GB"),
        ("a100 40gb", "A100-40GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("rtx4090", "RTX 4090"),
        ("Tesla T4", "T4"),
        ("AMD Instinct MI300X", "MI300X"),
        ("cpu", "CPU"),
    ],
)
def test_a_device_is_found_by_any_of_its_names(spelling, name):
    assert device(spelling).name == name


def test_an_unknown_device_offers_the_nearest():
    with pytest.raises(UnknownName, match="unknown GPU 'L41'") as caught:
        device("L41")
    assert "L4" in caught.value.hint


@pytest.mark.parametrize("name", device_names())
def test_every_device_is_physically_plausible_and_has_a_source(name):
    found = device(name)
    assert found.source
    assert found.memory_bytes > 8 * GIB
    assert link(found.link)
    rates = [found.bf16_flops, found.fp8_flops, found.fp4_flops]
    known = [rate for rate in rates if rate is not None]
    assert known == sorted(known), "a narrower dtype is never slower"
    if found.vendor != "generic":
        # Dense silicon of 2018 to 2026 multiplies 70 to 300 bf16 numbers for each byte it reads.
        assert 35 < found.bf16_flops / found.memory_bytes_per_s < 450


def test_rates_are_dense_and_memory_is_the_drivers():
    found = device("H100")
    assert found.bf16_flops == pytest.approx(989.4 * TFLOPS)  # 1,979 is the sparse number
    assert found.memory_bytes == 81_559 * MIB
    assert device("L4").memory_bytes_per_s == 300 * GB
    a10g = device("A10G")
    assert a10g.bf16_flops / a10g.memory_bytes_per_s == pytest.approx(116, abs=1)  # published
    assert device("A100-40GB").fp8_flops is None


def test_the_catalogue_has_the_devices_that_people_ask_for():
    assert len(device_names()) >= 25
    for name in ("T4", "V100", "A10", "L40", "A30", "H20", "GH200", "B300", "RTX 5090", "MI325X"):
        assert device(name)


def test_a_node_has_the_link_that_is_usual_for_its_devices():
    assert node(gpu="L4", count=4).label == "4x L4"
    assert node(gpu="H100", count=8).link.name == "nvlink4"
    assert not node(gpu="L4", count=2).link.peer_to_peer
    assert node(gpu="L4", count=2, link_name="pcie4-p2p").link.peer_to_peer
    with pytest.raises(PlanError):
        node(gpu="L4", count=0)
    with pytest.raises(UnknownName):
        node(gpu="L4", link_name="string")


def test_an_instance_is_known_with_or_without_its_prefix():
    found = instance("g6.12xlarge")
    assert found == instance("ML.G6.12xlarge")
    assert (found.device.name, found.device_count, found.link.name) == ("L4", 4, "pcie4")
    assert found.price is not None
    assert found.price.usd_per_hour == 5.752
    assert found.price.date


def test_an_unknown_instance_offers_near_ones_with_their_whole_names():
    with pytest.raises(UnknownName) as caught:
        instance("g6.13xlarge")
    assert "ml.g6.12xlarge" in caught.value.hint


def test_instances_without_a_public_price_stay_unpriced():
    assert instance("ml.p5e.48xlarge").price is None
    assert instance("ml.p6-b200.48xlarge").price is None


def test_every_price_says_where_and_when_it_was_read():
    for found in instances().values():
        if found.price is not None:
            assert found.price.source
            assert found.price.date
            assert found.price.region.startswith("us-")


def test_the_cheapest_instance_has_enough_devices_and_a_price():
    assert cheapest_instance_with("L4", 1).name == "ml.g6.xlarge"
    assert cheapest_instance_with("L4", 2).name == "ml.g6.12xlarge"
    assert cheapest_instance_with(device("A10G"), 8).name == "ml.g5.48xlarge"
    assert cheapest_instance_with("B200", 1) is None  # nobody publishes its price
    assert cheapest_instance_with("L4", 16) is None
    assert cheapest_instance_with("RTX 3090", 1) is None


def test_more_devices_never_cost_less():
    costs = [cheapest_instance_with("L40S", count).price.usd_per_hour for count in range(1, 9)]
    assert costs == sorted(costs)


OWN = """
[[device]]
name = "Mine"
aliases = ["my own"]
vendor = "me"
architecture = "new"
memory_mib = 1000
memory_gb_per_s = 10
bf16_tflops = 1

[[device]]
name = "L4"
vendor = "NVIDIA"
architecture = "ada"
memory_mib = 23034
memory_gb_per_s = 250
bf16_tflops = 100
"""


def test_a_users_devices_are_added_or_replace_the_bundled_ones(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(OWN)
    devices = load_devices(path)
    assert devices["Mine"].memory_bytes == 1000 * MIB
    assert devices["L4"].memory_bytes_per_s == 250 * GB
    assert len(devices) == len(load_devices()) + 1
    assert device("MY-OWN", extra_toml=path).name == "Mine"
    assert node(gpu="mine", count=2, extra_toml=path).label == "2x Mine"
    assert device("L4").memory_bytes_per_s == 300 * GB


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "x = 1",
        OWN.replace("bf16_tflops = 1\n", ""),
        OWN.replace("memory_mib = 1000", "memory_mib = 0"),
        OWN.replace("memory_mib = 1000", "memory_mib = 'much'"),
        OWN.replace("memory_mib = 1000", "memory_mib = 1000\ncolour = 'red'"),
        OWN.replace('name = "Mine"', 'name = "Mine"\nlink = "string"'),
    ],
)
def test_a_users_file_that_is_wrong_is_refused(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InputError):
        load_devices(path)


def test_a_users_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        load_devices(tmp_path / "absent.toml")


def test_devices_and_nodes_compare_by_value():
    assert device("L4") == load_devices()["L4"]
    assert isinstance(instance("g5.xlarge").device, Device)


def shared_instances() -> Path:
    default = Path(__file__).parents[3] / "shared"
    folder = Path(os.environ.get("SERVETUNE_SHARED", default))
    return folder / "data" / "sagemaker_instances.csv"


@pytest.mark.skipif(not shared_instances().is_file(), reason="the shared table is not here")
def test_instances_agree_with_the_published_table():
    with shared_instances().open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(instances())
    for row in rows:
        found = instance(row["instance_type"])
        assert found.device_count == int(row["gpu_count"])
        assert found.cpus == int(row["vcpu"])
        price = None if found.price is None else found.price.usd_per_hour
        assert price == (float(row["price_usd_hour"]) if row["price_usd_hour"] else None)
        # Sold sizes and the driver's differ by a few percent.
        assert found.device.memory_bytes / GIB == pytest.approx(float(row["gpu_mem_gib"]), rel=0.07)


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(catalog).failed == 0
