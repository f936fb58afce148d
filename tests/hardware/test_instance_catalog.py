import csv
import doctest
import re

import pytest

from servetune.errors import UnknownName
from servetune.hardware import (
    cheapest_instance_with,
    device,
    instance,
    instance_catalog,
    instances,
    load_devices,
)
from servetune.units import GB, GIB

SERVICES = ("sagemaker", "ec2")
SAGEMAKER_FAMILIES = {
    *("g4dn", "g5", "g6", "g6e", "g7", "g7e", "inf2", "trn1", "trn1n", "trn2"),
    *("p3", "p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "p6-b300", "p6e-gb200"),
}


def test_the_prefix_says_whose_instance_it_is():
    hosted, rented = instance("ML.G6.12xlarge"), instance("g6.12xlarge")
    assert (hosted.name, rented.name) == ("ml.g6.12xlarge", "g6.12xlarge")
    assert hosted.device == rented.device == device("L4")
    assert (hosted.device_count, hosted.link.name, hosted.cpus) == (4, "pcie4-vm", 48)
    assert (rented.device_count, rented.link.name, rented.cpus) == (4, "pcie4-vm", 48)
    assert hosted.price.usd_per_hour == 5.752
    assert rented.price.usd_per_hour == 4.6016


def test_where_the_service_is_known_the_prefix_may_be_left_out():
    assert instance("g6.12xlarge", service="sagemaker") == instance("ml.g6.12xlarge")
    assert instance("ml.g6.12xlarge", service="sagemaker") == instance("ml.g6.12xlarge")
    assert instance("ml.g6.12xlarge", service="ec2") == instance("g6.12xlarge")


@pytest.mark.parametrize(
    ("asked", "service", "offered"),
    [
        ("ml.g6.13xlarge", None, "ml.g6.12xlarge"),
        ("g6.13xlarge", "sagemaker", "ml.g6.12xlarge"),
        ("g6.13xlarge", None, " g6.12xlarge"),
    ],
)
def test_an_unknown_instance_offers_near_ones_with_their_whole_names(asked, service, offered):
    with pytest.raises(UnknownName) as caught:
        instance(asked, service=service)
    assert offered in caught.value.hint


def test_a_prefix_is_not_enough_to_be_an_instance():
    with pytest.raises(UnknownName):
        instance("ml.gr6.4xlarge")  # EC2 has it, SageMaker has not


def test_sagemakers_instances_are_those_of_its_enumeration():
    families = {re.sub(r"\..*", "", name[3:]) for name in instances()}
    assert families == SAGEMAKER_FAMILIES
    assert len(instances()) == 62


def test_ec2_has_every_family_that_can_serve():
    families = {re.sub(r"\..*", "", name) for name in instances("ec2")}
    assert families >= SAGEMAKER_FAMILIES | {"gr6", "p3dn"}


def test_an_instance_of_both_services_is_the_same_machine():
    rented = instances("ec2")
    for name, hosted in instances().items():
        other = rented[name.removeprefix("ml.")]
        for field in ("device", "device_count", "link", "cpus", "memory_bytes"):
            assert getattr(hosted, field) == getattr(other, field), (name, field)


def test_hosting_costs_more_than_the_machine_alone():
    rented = instances("ec2")
    compared = 0
    for name, hosted in instances().items():
        other = rented[name.removeprefix("ml.")]
        if hosted.price and other.price:
            compared += 1
            share = hosted.price.usd_per_hour / other.price.usd_per_hour
            assert 1.1 < share < 1.45, (name, share)  # 15% on p4 and p5, 20 to 40% on the others
    assert compared > 40


@pytest.mark.parametrize(
    "name",
    ["ml.p5e.48xlarge", "ml.p6-b200.48xlarge", "ml.g7.2xlarge", "p5e.48xlarge", "trn2.48xlarge"],
)
def test_instances_without_a_public_price_stay_unpriced(name):
    assert instance(name).price is None


@pytest.mark.parametrize("service", SERVICES)
def test_every_price_says_where_and_when_it_was_read(service):
    priced = [found for found in instances(service).values() if found.price is not None]
    assert len(priced) > 45
    for found in priced:
        assert found.price.source
        assert re.match(r"20\d\d", found.price.date)
        assert found.price.region.startswith("us-")
        assert 0.3 < found.price.usd_per_hour / found.device_count < 20


@pytest.mark.parametrize("service", SERVICES)
def test_every_row_is_an_instance_of_the_catalogues_devices(service):
    assert len(instance_catalog._rows(service)) == len(instances(service))
    for name, row in instance_catalog._rows(service).items():
        assert row.device in load_devices(), "instances name devices as the catalogue does"
        assert name.startswith("ml.") == (service == "sagemaker")


def test_ec2_knows_its_network():
    assert instance("p5.48xlarge").network_bytes_per_s == 400 * GB
    assert instance("p6-b300.48xlarge").network_bytes_per_s == 800 * GB
    assert all(found.network_bytes_per_s for found in instances("ec2").values())


def test_the_cheapest_instance_has_enough_devices_and_a_price():
    assert cheapest_instance_with("L4", 1).name == "ml.g6.xlarge"
    assert cheapest_instance_with("L4", 2).name == "ml.g6.12xlarge"
    assert cheapest_instance_with("L4", 2, service="ec2").name == "g6.12xlarge"
    assert cheapest_instance_with(device("A10G"), 8).name == "ml.g5.48xlarge"
    assert cheapest_instance_with("B200", 1) is None  # SageMaker publishes no price
    assert cheapest_instance_with("B200", 1, service="ec2").name == "p6-b200.48xlarge"
    assert cheapest_instance_with("L4", 16) is None
    assert cheapest_instance_with("RTX 3090", 1) is None


@pytest.mark.parametrize("service", SERVICES)
def test_more_devices_never_cost_less(service):
    costs = [
        cheapest_instance_with("L40S", count, service=service).price.usd_per_hour
        for count in range(1, 9)
    ]
    assert costs == sorted(costs)


def test_a_users_correction_of_a_device_reaches_the_instances(tmp_path, monkeypatch):
    path = tmp_path / "devices.toml"
    path.write_text(
        '[[device]]\nname = "L4"\nvendor = "NVIDIA"\narchitecture = "ada"\n'
        "memory_mib = 23034\nmemory_gb_per_s = 270\nbf16_tflops = 90\n"
    )
    monkeypatch.setenv("SERVETUNE_DEVICES", str(path))
    assert instance("ml.g6.12xlarge").device.memory_bytes_per_s == 270 * GB
    assert cheapest_instance_with("L4").device.bf16_flops == 90e12
    monkeypatch.setenv("SERVETUNE_DEVICES", "")
    assert instance("ml.g6.12xlarge").device.memory_bytes_per_s == 300 * GB * 15 / 16


def test_instances_agree_with_the_published_table(shared):
    with (shared / "data" / "sagemaker_instances.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 50
    unlisted = set(instances()) - {row["instance_type"] for row in rows}
    assert all(instances()[name].price is None for name in unlisted)
    for row in rows:
        found = instance(row["instance_type"])
        assert found.device_count == int(row["gpu_count"])
        assert found.cpus == int(row["vcpu"])
        price = None if found.price is None else found.price.usd_per_hour
        assert price == (float(row["price_usd_hour"]) if row["price_usd_hour"] else None)
        # Sold sizes and the driver's differ by a few percent.
        assert found.device.memory_bytes / GIB == pytest.approx(float(row["gpu_mem_gib"]), rel=0.07)


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(instance_catalog).failed == 0
