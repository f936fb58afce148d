import sys
from types import SimpleNamespace

import pytest

from servetune.errors import InputError, UnknownName
from servetune.hardware import detect, detect_cpu, device, device_for_card, load_devices
from servetune.hardware.detect import _is_virtual
from servetune.units import MIB

MODULE = sys.modules["servetune.hardware.detect"]  # the room's name is the function's


class NoAnswer(Exception):
    pass


class FakeNvml:
    """The functions of pynvml that detection uses, over a list of (name, MiB)."""

    NVMLError = NoAnswer
    NVML_P2P_CAPS_INDEX_READ = 0
    NVML_P2P_STATUS_OK = 0
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(
        self,
        cards,
        *,
        nvlink=False,
        generation=4,
        peer_to_peer=False,
        driver=True,
        split=(),
        limit_w=None,
    ):
        self.split = split
        self.limit_w = limit_w
        self.cards = cards
        self.nvlink = nvlink
        self.generation = generation
        self.peer_to_peer = peer_to_peer
        self.driver = driver
        self.open = 0

    def nvmlInit(self):  # noqa: N802
        if not self.driver:
            raise NoAnswer
        self.open += 1

    def nvmlShutdown(self):  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        return self.cards[handle][0]

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        return SimpleNamespace(total=self.cards[handle][1] * MIB)

    def nvmlDeviceGetMigMode(self, handle):  # noqa: N802
        if "H100" not in str(self.cards[handle][0]):
            raise NoAnswer  # most cards cannot be split
        return [int(handle in self.split)] * 2

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):  # noqa: N802
        if self.limit_w is None:
            raise NoAnswer
        return self.limit_w * 1000

    def nvmlDeviceGetNvLinkState(self, handle, index):  # noqa: N802
        if not self.nvlink:
            raise NoAnswer
        return 1

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle):  # noqa: N802
        if self.generation is None:
            raise NoAnswer
        return self.generation

    def nvmlDeviceGetP2PStatus(self, first, second, index):  # noqa: N802
        return self.NVML_P2P_STATUS_OK if self.peer_to_peer else 5


#: Cards as NVML names them, with the total that it reports, from public logs (2021 to 2026).
CARDS = [
    ("Tesla T4", 15360, "T4"),
    ("Tesla V100-SXM2-16GB", 16160, "V100-16GB"),  # drivers before 510
    ("Tesla V100-SXM2-16GB", 16384, "V100-16GB"),
    ("Tesla V100-SXM2-32GB", 32768, "V100-32GB"),
    ("Tesla V100-SXM3-32GB", 32510, "V100-32GB"),
    ("Tesla V100-PCIE-16GB", 16384, "V100-PCIe-16GB"),
    ("Tesla V100-PCIE-32GB", 32510, "V100-PCIe-32GB"),
    ("NVIDIA H100", 65247, "H100-64GB"),  # MareNostrum 5
    ("NVIDIA GeForce RTX 4090", 49140, "RTX 4090 48GB"),  # sold with twice the memory
    ("NVIDIA GeForce RTX 4090 D", 49140, "RTX 4090 D 48GB"),
    ("NVIDIA A10", 23028, "A10"),
    ("NVIDIA A10G", 23028, "A10G"),
    ("NVIDIA A16", 15356, "A16"),
    ("NVIDIA A30", 24576, "A30"),
    ("NVIDIA A40", 46068, "A40"),
    ("NVIDIA RTX A6000", 49140, "RTX A6000"),
    ("A100-SXM4-40GB", 40536, "A100-40GB"),  # drivers before 470 leave the maker out
    ("NVIDIA A100-SXM4-40GB", 40960, "A100-40GB"),
    ("NVIDIA A100-SXM4-80GB", 81920, "A100-80GB"),
    ("NVIDIA A100-PCIE-40GB", 40960, "A100-PCIe-40GB"),
    ("NVIDIA A100 80GB PCIe", 81920, "A100-PCIe-80GB"),
    ("NVIDIA A800-SXM4-80GB", 81920, "A800-80GB"),
    ("NVIDIA A800 80GB PCIe", 81920, "A800-PCIe-80GB"),
    ("NVIDIA L4", 23034, "L4"),
    ("NVIDIA L20", 46068, "L20"),
    ("NVIDIA L40", 46068, "L40"),
    ("NVIDIA L40S", 46068, "L40S"),
    ("NVIDIA GeForce RTX 3090", 24576, "RTX 3090"),
    ("NVIDIA GeForce RTX 4090", 24564, "RTX 4090"),
    ("NVIDIA GeForce RTX 5090", 32607, "RTX 5090"),
    ("NVIDIA RTX 6000 Ada Generation", 49140, "RTX 6000 Ada"),
    ("NVIDIA RTX PRO 4500 Blackwell Server Edition", 32623, "RTX PRO 4500 Server"),
    ("NVIDIA RTX PRO 4500 Blackwell", 32623, "RTX PRO 4500 Workstation"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "RTX PRO 6000 Server"),
    ("NVIDIA RTX 6000D", 85651, "RTX 6000D"),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887, "RTX PRO 6000 Workstation"),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 97887, "RTX PRO 6000 Max-Q"),
    ("NVIDIA H100 80GB HBM3", 81559, "H100"),
    ("NVIDIA H100 PCIe", 81559, "H100-PCIe"),
    ("NVIDIA H100 NVL", 95830, "H100-NVL"),
    ("NVIDIA H800", 81559, "H800"),
    ("NVIDIA H20", 97871, "H20"),
    ("NVIDIA H200", 143771, "H200"),
    ("NVIDIA H200 NVL", 143771, "H200-NVL"),
    ("NVIDIA GH200 480GB", 97871, "GH200"),
    ("NVIDIA GH200 144G HBM3e", 146831, "GH200-144GB"),
    ("NVIDIA B200", 183359, "B200"),
    ("NVIDIA B300 SXM6 AC", 275040, "B300"),
    ("NVIDIA GB200", 189471, "GB200"),
    ("NVIDIA GB300", 284208, "GB300"),
    ("NVIDIA GB300", 256703, "GB300"),  # the desk-side machine
    ("NVIDIA GB10", 122570, "GB10"),
    ("Tesla V100S-PCIE-32GB", 32768, "V100S-PCIe-32GB"),
    ("NVIDIA GeForce RTX 4090 D", 24564, "RTX 4090 D"),
    ("NVIDIA RTX 4000 Ada Generation", 20475, "RTX 4000 Ada"),
    ("NVIDIA RTX 5000 Ada Generation", 32760, "RTX 5000 Ada"),
    ("NVIDIA GeForce RTX 2080 Ti", 11264, "RTX 2080 Ti"),
    ("NVIDIA GeForce RTX 2080 Ti", 22528, "RTX 2080 Ti 22GB"),
    ("NVIDIA TITAN RTX", 24576, "TITAN RTX"),
    ("Quadro RTX 6000", 24576, "Quadro RTX 6000"),
    ("Quadro RTX 8000", 49152, "Quadro RTX 8000"),
    ("NVIDIA GeForce RTX 3060", 12288, "RTX 3060 12GB"),
    ("NVIDIA GeForce RTX 3070", 8192, "RTX 3070"),
    ("NVIDIA GeForce RTX 3080", 10240, "RTX 3080 10GB"),
    ("NVIDIA GeForce RTX 3080", 12288, "RTX 3080 12GB"),
    ("NVIDIA GeForce RTX 3080 Ti", 12288, "RTX 3080 Ti"),
    ("NVIDIA GeForce RTX 3090 Ti", 24564, "RTX 3090 Ti"),
    ("NVIDIA GeForce RTX 4060 Ti", 16380, "RTX 4060 Ti 16GB"),
    ("NVIDIA GeForce RTX 4070", 12282, "RTX 4070"),
    ("NVIDIA GeForce RTX 4070 SUPER", 12282, "RTX 4070 SUPER"),
    ("NVIDIA GeForce RTX 4070 Ti", 12282, "RTX 4070 Ti"),
    ("NVIDIA GeForce RTX 4070 Ti SUPER", 16376, "RTX 4070 Ti SUPER"),
    ("NVIDIA GeForce RTX 4080", 16376, "RTX 4080"),
    ("NVIDIA GeForce RTX 4080 SUPER", 16376, "RTX 4080 SUPER"),
    ("NVIDIA GeForce RTX 5060 Ti", 16311, "RTX 5060 Ti 16GB"),
    ("NVIDIA GeForce RTX 5070", 12227, "RTX 5070"),
    ("NVIDIA GeForce RTX 5070 Ti", 16303, "RTX 5070 Ti"),
    ("NVIDIA GeForce RTX 5080", 16303, "RTX 5080"),
    ("NVIDIA RTX A4000", 16376, "RTX A4000"),
    ("NVIDIA RTX A4500", 20470, "RTX A4500"),
    ("NVIDIA RTX A5000", 24564, "RTX A5000"),
    ("NVIDIA RTX A5500", 24564, "RTX A5500"),
    ("NVIDIA RTX 2000 Ada Generation", 16380, "RTX 2000 Ada"),
    ("NVIDIA RTX 4500 Ada Generation", 24570, "RTX 4500 Ada"),
    ("NVIDIA RTX 5880 Ada Generation", 49140, "RTX 5880 Ada"),
    ("NVIDIA RTX PRO 4000 Blackwell", 24467, "RTX PRO 4000 Workstation"),
    ("NVIDIA RTX PRO 5000 Blackwell", 48935, "RTX PRO 5000 Workstation"),
    ("NVIDIA RTX PRO 5000 72GB Blackwell", 73415, "RTX PRO 5000 Workstation 72GB"),
    ("NVIDIA A2", 15356, "A2"),
    ("NVIDIA H20-3e", 143771, "H20-141GB"),
    ("Tesla P100-SXM2-16GB", 16384, "P100-16GB"),
    ("Tesla P100-PCIE-16GB", 16384, "P100-PCIe-16GB"),
    ("Tesla P40", 24576, "P40"),
    ("Tesla P40", 23040, "P40"),  # with error correction
    ("Tesla P4", 7680, "P4"),
    ("NVIDIA TITAN V", 12288, "TITAN V"),
    ("Quadro GV100", 32508, "Quadro GV100"),
    ("NVIDIA A800 40GB Active", 40960, "A800-PCIe-40GB"),
    ("NVIDIA GeForce RTX 2060", 6144, "RTX 2060"),
    ("NVIDIA GeForce RTX 2070", 8192, "RTX 2070"),
    ("NVIDIA GeForce RTX 2080", 8192, "RTX 2080"),
    ("NVIDIA GeForce RTX 2080 SUPER", 8192, "RTX 2080 SUPER"),
    ("NVIDIA GeForce RTX 3050", 8192, "RTX 3050 8GB"),
    ("NVIDIA GeForce RTX 3060 Ti", 8192, "RTX 3060 Ti"),
    ("NVIDIA GeForce RTX 3070 Ti", 8192, "RTX 3070 Ti"),
    ("NVIDIA GeForce RTX 4060", 8188, "RTX 4060"),
    ("NVIDIA GeForce RTX 5060", 8151, "RTX 5060"),
    ("NVIDIA GeForce RTX 3080 Laptop GPU", 16384, "RTX 3080 Laptop"),
    ("NVIDIA GeForce RTX 4060 Laptop GPU", 8188, "RTX 4060 Laptop"),
    ("NVIDIA GeForce RTX 4070 Laptop GPU", 8188, "RTX 4070 Laptop"),
    ("NVIDIA GeForce RTX 4080 Laptop GPU", 12282, "RTX 4080 Laptop"),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376, "RTX 4090 Laptop"),
    ("NVIDIA GeForce RTX 5070 Ti Laptop GPU", 12227, "RTX 5070 Ti Laptop"),
    ("NVIDIA GeForce RTX 5070 Laptop GPU", 8151, "RTX 5070 Laptop"),
    ("NVIDIA GeForce RTX 5080 Laptop GPU", 16303, "RTX 5080 Laptop"),
    ("NVIDIA GeForce RTX 5090 Laptop GPU", 24463, "RTX 5090 Laptop"),
    ("NVIDIA RTX A2000", 6138, "RTX A2000 6GB"),
    ("NVIDIA RTX A2000 12GB", 12282, "RTX A2000 12GB"),
    ("NVIDIA RTX 4000 SFF Ada Generation", 20475, "RTX 4000 SFF Ada"),
    ("NVIDIA RTX PRO 2000 Blackwell", 16311, "RTX PRO 2000 Workstation"),
    ("NVIDIA Thor", 125771, "Jetson AGX Thor"),
]

#: Devices that no test detects: no public log of one was found.
WITHOUT_LOG = {"B100", "L2", "H100-96GB"}

#: Devices whose driver does not say how much memory there is.
WITHOUT_MEMORY = {
    "Jetson AGX Orin 64GB",
    "Jetson AGX Orin 32GB",
    "Jetson Orin NX 16GB",
    "Jetson Orin Nano Super",
}


@pytest.mark.parametrize(("card", "mib", "name"), CARDS)
def test_a_card_is_told_from_its_neighbours_by_its_whole_name(card, mib, name):
    found = device_for_card(card, mib * MIB)
    assert found.name == name
    assert found.memory_bytes == mib * MIB


def test_every_nvidia_device_of_the_catalogue_is_detected():
    catalogued = {name for name, found in load_devices().items() if found.vendor == "NVIDIA"}
    detected = {name for _, _, name in CARDS}
    assert catalogued - detected == WITHOUT_LOG | WITHOUT_MEMORY


def test_memory_decides_where_the_name_does_not():
    assert device_for_card("NVIDIA A100-SXM4", 40960 * MIB).name == "A100-40GB"
    assert device_for_card("NVIDIA A100-SXM4", 81251 * MIB).name == "A100-80GB"
    assert device_for_card("Tesla V100-PCIE", 32510 * MIB).name == "V100-PCIe-32GB"


@pytest.mark.parametrize("card", ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", "MIG 2g.20gb"])
def test_a_mig_instance_is_called_what_it_is(card):
    with pytest.raises(InputError, match="MIG instance") as caught:
        device_for_card(card, 4864 * MIB)
    assert "your-own-hardware" in caught.value.hint


def test_a_machine_of_split_cards_is_refused():
    nvml = FakeNvml([("NVIDIA H100 80GB HBM3", 81559)] * 2, split=(0, 1))
    with pytest.raises(InputError, match=r"2x NVIDIA H100 80GB HBM3 \(MIG\) split into MIG"):
        detect(nvml)
    assert nvml.open == 0


def test_split_cards_beside_a_whole_one_are_left_out_and_named():
    found = detect(FakeNvml([("NVIDIA H100 80GB HBM3", 81559)] * 3, split=(0, 1)))
    assert found.device_count == 1
    assert "without 2x NVIDIA H100 80GB HBM3 (MIG)" in found.name


def test_a_card_with_far_other_memory_is_another_card():
    with pytest.raises(UnknownName, match="NVIDIA H200 with 40960 MiB"):
        device_for_card("NVIDIA H200", 40960 * MIB)


def test_a_card_that_nobody_described_asks_for_a_description():
    nvml = FakeNvml([("NVIDIA Future 9000", 99999)])
    with pytest.raises(UnknownName, match="Future 9000") as caught:
        detect(nvml)
    assert "TOML" in caught.value.hint
    assert "--gpu" in caught.value.hint
    assert nvml.open == 0


@pytest.mark.parametrize(("virtual", "named"), [(False, "pcie4"), (True, "pcie4-vm")])
def test_four_l4_without_peer_to_peer_are_found_as_they_are(monkeypatch, virtual, named):
    monkeypatch.setattr(MODULE, "_is_virtual", lambda: virtual)
    nvml = FakeNvml([("NVIDIA L4", 23034)] * 4)
    found = detect(nvml)
    assert found.label == "4x L4"
    assert found.link.name == named
    assert found.cpus >= 1
    assert found.memory_bytes > 0
    assert nvml.open == 0


def test_the_driver_may_name_cards_in_bytes():
    assert detect(FakeNvml([(b"NVIDIA L4", 23034)])).device.name == "L4"


@pytest.mark.parametrize(
    ("flags", "virtual"), [("fpu sse hypervisor lahf_lm", True), ("fpu sse lahf_lm", False)]
)
def test_a_virtual_machine_is_told_by_its_processor(tmp_path, flags, virtual):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"model name\t: X\nflags\t\t: {flags}\n")
    assert _is_virtual(cpuinfo) is virtual
    assert not _is_virtual(tmp_path / "none")


def test_the_link_is_what_the_cards_report(monkeypatch):
    monkeypatch.setattr(MODULE, "_is_virtual", lambda: False)
    pair = [("NVIDIA L40S", 46068)] * 2
    assert detect(FakeNvml(pair, peer_to_peer=True)).link.name == "pcie4-p2p"
    assert detect(FakeNvml(pair, generation=5)).link.name == "pcie5"
    assert detect(FakeNvml(pair, generation=None)).link.name == device("L40S").link
    eight = [("NVIDIA H100 80GB HBM3", 81559)] * 8
    assert detect(FakeNvml(eight, nvlink=True)).link.name == "nvlink4"
    # The same silicon without its switches is a PCI Express machine.
    assert detect(FakeNvml(eight, generation=5)).link.name == "pcie5"


def test_of_mixed_cards_the_most_numerous_kind_counts():
    cards = [("NVIDIA T4", 15360), ("NVIDIA L4", 23034), ("NVIDIA L4", 23034)]
    found = detect(FakeNvml(cards))
    assert (found.device.name, found.device_count) == ("L4", 2)
    assert found.label == "2x L4 (this machine, without 1x NVIDIA T4)"


def test_a_card_that_is_left_out_need_not_be_known():
    cards = [("NVIDIA L4", 23034), ("NVIDIA L4", 23034), ("NVIDIA Future 9000", 99999)]
    assert "1x NVIDIA Future 9000" in detect(FakeNvml(cards)).name


def test_the_power_limit_is_the_one_that_the_driver_enforces():
    assert detect(FakeNvml([("NVIDIA L4", 23034)], limit_w=60)).device.tdp_watts == 60
    assert detect(FakeNvml([("NVIDIA L4", 23034)])).device.tdp_watts == 72


def test_a_bridge_between_cards_is_no_switch():
    pair = [("NVIDIA A40", 46068)] * 2
    assert detect(FakeNvml(pair, nvlink=True)).link.name == "nvlink3-bridge"
    assert detect(FakeNvml([("NVIDIA H100 PCIe", 81559)] * 2, nvlink=True)).link.name == (
        "nvlink4-bridge"
    )
    assert detect(FakeNvml([("NVIDIA A800-SXM4-80GB", 81920)] * 8, nvlink=True)).link.name == (
        "nvlink3-400"
    )


def test_no_driver_and_no_card_are_nothing():
    assert detect(FakeNvml([], driver=False)) is None
    assert detect(FakeNvml([])) is None


def test_this_machines_processor_is_one_device_that_says_it_is_a_guess():
    found = detect_cpu()
    assert found.device_count == 1
    assert found.device.architecture == "cpu"
    assert "guess" in found.device.source
    assert found.device.bf16_flops == found.cpus * 2.5e9 * 32
    assert found.memory_bytes == found.device.memory_bytes > 0
