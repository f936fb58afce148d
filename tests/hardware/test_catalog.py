import doctest
import tomllib
from importlib import resources

import pytest

from servetune.errors import PlanError, UnknownName
from servetune.hardware import (
    catalog,
    device,
    device_names,
    instance,
    link,
    load_devices,
    node,
)
from servetune.models import load_shape
from servetune.perf import performance_at
from servetune.plan.plan import Plan
from servetune.units import GB, GIB, MIB, TFLOPS
from servetune.workload.lengths import LengthLaws
from servetune.workload.workload import Workload

ROWS = tomllib.loads(
    resources.files("servetune.hardware").joinpath("data/devices.toml").read_text("utf-8")
)["device"]
NAMES = [row["name"] for row in ROWS]


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("L4", "L4"),
        ("NVIDIA L4", "L4"),
        ("l40s", "L40S"),
        ("h100", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("h100 pcie", "H100-PCIe"),
        ("h200_sxm", "H200"),
        ("A100-80GB", "A100-80GB"),
        ("a100 40gb", "A100-40GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("rtx4090", "RTX 4090"),
        ("rtx pro 6000", "RTX PRO 6000 Server"),
        ("Tesla T4", "T4"),
        ("AMD Instinct MI300X", "MI300X"),
        ("intel gaudi3", "Gaudi 3"),
        ("trillium", "TPU v6e"),
        ("cpu", "CPU"),
        ("Tesla P40", "P40"),
        ("Tesla P100-SXM2-16GB", "P100-16GB"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX 4090 Laptop"),
        ("RTX 4090D 48GB", "RTX 4090 D 48GB"),
        ("RTX 8000", "Quadro RTX 8000"),
        ("A2000", "RTX A2000 6GB"),
        ("NVIDIA A800 40GB Active", "A800-PCIe-40GB"),
        ("NVIDIA H100 SXM5 64GB", "H100-64GB"),
        ("AMD Instinct MI308X", "MI308X"),
        ("Radeon W7900", "PRO W7900"),
        ("Intel(R) Arc(TM) Pro B70 Graphics", "Arc Pro B70"),
        ("Ascend910B3", "Ascend 910B3"),
        ("910B", "Ascend 910B3"),
        ("910B4", "Ascend 910B4"),
        ("Jetson AGX Orin", "Jetson AGX Orin 64GB"),
        ("NVIDIA Thor", "Jetson AGX Thor"),
        ("ironwood", "TPU v7x"),
    ],
)
def test_a_device_is_found_by_any_of_its_names(spelling, name):
    assert device(spelling).name == name


def test_an_unknown_device_offers_the_nearest():
    with pytest.raises(UnknownName, match="unknown GPU 'L41'") as caught:
        device("L41")
    assert "L4" in caught.value.hint


def test_a_device_like_none_offers_those_that_it_shares_most_with():
    with pytest.raises(UnknownName) as caught:
        device("L99")
    assert "L4," in caught.value.hint
    assert caught.value.hint.endswith(" more")


def test_the_bundled_devices_are_enough_and_each_spelling_means_one():
    assert len([name for name in NAMES if name != "CPU"]) >= 45
    assert tuple(NAMES) == device_names() == tuple(load_devices())
    spellings = [(catalog._spelling(row["name"]), row["name"]) for row in ROWS]
    spellings += [
        (catalog._spelling(alias), row["name"]) for row in ROWS for alias in row.get("aliases", ())
    ]
    meant: dict[str, set[str]] = {}
    for spelling, name in spellings:
        meant.setdefault(spelling, set()).add(name)
    assert {spelling: names for spelling, names in meant.items() if len(names) > 1} == {}
    for row in ROWS:
        for spelling in (row["name"], *row.get("aliases", ())):
            assert device(spelling).name == row["name"]


#: Silicon without matrix units, whose 16-bit rate is that of its vector units.
VECTOR_ONLY = ("pascal", "vega", "rdna2")

#: What a chip does with fp8 where it is not twice bf16.
FP8_OVER_BF16 = {"Gaudi 3": 1.0, "Inferentia2": 1.0, "Trainium1": 1.0, "Trainium3": 3.75}


@pytest.mark.parametrize("name", NAMES)
def test_every_device_is_physically_plausible_and_has_a_dated_source(name):
    found = device(name)
    assert link(found.link).source
    assert found.memory_bytes >= 5.9 * GIB
    if found.vendor == "generic":
        assert "guess" in found.source
        return
    assert "(20" in found.source, "a source has a date"
    assert "memory" in found.source, "who says how much memory there is"
    # Dense silicon of 2018 to 2026 multiplies 31 (H20) to 560 (TPU v6e) pairs a byte that it reads,
    # 950 with the LPDDR of a Jetson Thor, and 25 (P100) to 90 (RX 6900 XT) without matrix units.
    vector_only = found.architecture in VECTOR_ONLY
    most = 1000 if found.name == "Jetson AGX Thor" else 600
    assert (24 if vector_only else 30) < found.bf16_flops / found.memory_bytes_per_s < most
    if found.fp8_flops is not None:
        ratio = FP8_OVER_BF16.get(name, 2.0)
        assert found.fp8_flops / found.bf16_flops == pytest.approx(ratio, rel=0.03)
    if found.fp4_flops is not None:
        assert found.fp8_flops is not None
        assert 1 <= found.fp4_flops / found.fp8_flops <= 4
    if found.int8_flops is not None:
        assert found.int8_flops >= found.bf16_flops, "a path that is slower is no path"
    if found.tdp_watts is not None:
        # From small cards of Ampere (0.14 TFLOPS per watt) to Blackwell (2.5), in the 16-bit type.
        least = 0.04 if vector_only else 0.13
        assert least < found.bf16_flops / TFLOPS / found.tdp_watts < 3


def test_every_nvidia_and_amd_board_has_a_power_limit():
    without = {
        name
        for name, found in load_devices().items()
        if found.vendor in ("NVIDIA", "AMD", "Intel") and found.tdp_watts is None
    }
    shared_with_the_processor = {"GH200", "GH200-144GB"}
    never_published = {"L2", "MI308X"}
    assert without == shared_with_the_processor | never_published


def test_rates_are_dense_and_memory_is_the_drivers():
    found = device("H100")
    assert found.bf16_flops == pytest.approx(989.4 * TFLOPS)  # 1,979 is the sparse number
    assert found.memory_bytes == 81_559 * MIB
    assert device("L4").memory_bytes_per_s == 300 * GB * 15 / 16
    assert device("L4").tdp_watts == 72
    a10g = device("A10G")
    assert a10g.bf16_flops / a10g.memory_bytes_per_s == pytest.approx(116, abs=1)  # published
    assert device("A100-40GB").fp8_flops is None
    assert device("RTX PRO 4500").bf16_flops == 203 * TFLOPS  # 406 is the sparse number


def test_silicon_without_bf16_serves_in_fp16():
    halves = {name for name, found in load_devices().items() if found.half_dtype == "fp16"}
    without_bf16 = ("turing", "volta", *VECTOR_ONLY, "ascend-910", "ascend-310p")
    assert halves == {
        found.name for found in load_devices().values() if found.architecture in without_bf16
    }
    assert len(halves) == 28


def test_a_die_of_two_is_one_device_where_the_driver_shows_it():
    assert device("Ascend 910C").memory_bytes == 64 * GIB  # of a module's 128
    assert device("Ascend 310P").bf16_flops == 70 * TFLOPS  # of a card's 140
    assert device("TPU v7x").dies == 2  # a chip is named, and JAX shows two


@pytest.mark.parametrize("name", NAMES)
def test_every_device_can_be_priced_alone_and_as_a_pair(name):
    """Also silicon of which no operator table is known."""
    shape = load_shape("Qwen/Qwen2.5-0.5B-Instruct", catalogue_first=True)
    asked = Workload.of(LengthLaws.fixed(512, 128), request_count=1)
    engine = "sglang" if device(name).architecture == "pascal" else "vllm"  # which refuses it
    for count in (1, 2):
        plan = Plan(model=shape.name, engine=engine, tensor_parallel=count)
        machine = node(gpu=name, count=count)
        assert performance_at(shape, machine, plan, asked, 4).output_tokens_per_s > 0


def test_a_cut_link_is_slower_than_the_silicons_own():
    assert link(device("H800").link).bytes_per_s < link(device("H100").link).bytes_per_s
    assert link(device("A800").link).bytes_per_s == 200 * GB


def test_a_node_has_the_link_that_is_usual_for_its_devices():
    assert node(gpu="L4", count=4).label == "4x L4"
    assert node(gpu="H100", count=8).link.name == "nvlink4"
    assert not node(gpu="L4", count=2).link.peer_to_peer
    assert node(gpu="L4", count=2, link_name="pcie4-p2p").link.peer_to_peer
    with pytest.raises(PlanError):
        node(gpu="L4", count=0)
    with pytest.raises(UnknownName):
        node(gpu="L4", link_name="string")


OWN = """
[[device]]
name = "Mine"
aliases = ["my own", "A100"]
vendor = "me"
architecture = "new"
memory_mib = 1000
memory_gb_per_s = 10
bf16_tflops = 1

[[device]]
name = "l4"
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
    assert devices["l4"].memory_bytes_per_s == 250 * GB
    assert len(devices) == len(load_devices()) + 1
    assert device("MY-OWN", extra_toml=path).name == "Mine"
    assert device("NVIDIA L4", extra_toml=path).memory_bytes_per_s == 250 * GB
    assert device("A100", extra_toml=path).name == "Mine"
    assert device("A100-80GB", extra_toml=path).name == "A100-80GB"
    assert node(gpu="mine", count=2, extra_toml=path).label == "2x Mine"
    assert device("L4").memory_bytes_per_s == 300 * GB * 15 / 16


def test_error_correction_takes_a_share_of_the_bandwidth(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(OWN.replace("memory_mib", "memory_share = 0.5\nmemory_mib", 1))
    whole = tmp_path / "whole.toml"
    whole.write_text(OWN)
    (halved, own) = (load_devices(one)["Mine"].memory_bytes_per_s for one in (path, whole))
    assert halved == own / 2


def test_devices_and_nodes_compare_by_value():
    assert device("L4") == load_devices()["L4"]
    assert instance("g5.xlarge") == instance("G5.xlarge")


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(catalog).failed == 0


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("A100 80GB SXM", "A100-80GB"),
        ("SXM4 A100 40GB", "A100-40GB"),
        ("A100 80GB PCIe", "A100-PCIe-80GB"),
        ("H100-SXM-80GB", "H100"),
        ("H100 SXM5", "H100"),
        ("H100 NVL", "H100-NVL"),
        ("gb200_nvl72", "GB200"),
        ("DGX Spark (GB10)", "GB10"),
        ("GB10 (DGX Spark)", "GB10"),
        ("A100-40GB SXM (Azure ND96asr v4)", "A100-40GB"),
        ("RTX PRO 6000 Blackwell", "RTX PRO 6000 Server"),
        ("nvidia l40s gpu", "L40S"),
        ("l40s_pcie", "L40S"),
        ("L40s_PCIe_48GB", "L40S"),
        ("h100_sxm5", "H100"),
        ("h100-80gb-hbm3", "H100"),
        ("nvidia-h100-mega-80gb", "H100"),
        ("H100SXM5", "H100"),
        ("HGX H100", "H100"),
        ("H100 80GB PCIe", "H100-PCIe"),
        ("H100 NVL 94GB", "H100-NVL"),
        ("a100-sxm4-80gb", "A100-80GB"),
        ("nvidia-tesla-a100", "A100-80GB"),
        ("H200 141GB HBM3e", "H200"),
        ("mi300x_oam", "MI300X"),
        ("MI300X-192GB", "MI300X"),
        ("b200_sxm_180gb", "B200"),
        ("B200 192GB", "B200"),
        ("rtx_pro_6000_blackwell_server", "RTX PRO 6000 Server"),
        ("rtx 4090 24gb", "RTX 4090"),
        ("a10g-24gb", "A10G"),
        ("T4-16GB", "T4"),
        ("AWS trn1", "Trainium1"),
        ("ml.g6e.12xlarge", "L40S"),
        ("ml.p5.48xlarge", "H100"),
        ("p4d.24xlarge", "A100-40GB"),
        ("trn1.32xlarge", "Trainium1"),
    ],
)
def test_words_in_another_order_or_without_meaning_find_the_device(written, name):
    assert device(written).name == name


@pytest.mark.parametrize(
    "written",
    [
        "",
        "80GB",
        "SXM",
        "A100 120GB",
        "H100 A100",
        "H100 (94GB)",
        "A100 (40 GB PCIe)",
        "RTX 4090 (48GB modded)",
        "H100 (MIG 3g.40gb)",
        "L40S (2x)",
        "nvidia",
        "pcie",
        "H100 72GB",
        "h800_pcie",
        "RTX 6000",
    ],
)
def test_words_that_fit_no_device_or_several_are_refused(written):
    with pytest.raises(UnknownName):
        device(written)


def test_a_device_inside_a_longer_name_is_offered():
    with pytest.raises(UnknownName) as caught:
        device("Standard_ND96isr_H100_v5")
    assert "H100" in caught.value.hint


@pytest.mark.parametrize("name", [name for name in NAMES if "GB" not in name])
def test_a_device_is_found_with_its_own_memory_and_with_no_other(name):
    stated_gib = round(device(name).memory_bytes / GIB)
    assert device(f"{name} {stated_gib}GB").name == name
    with pytest.raises(UnknownName):
        device(f"{name} {3 * stated_gib}GB")
