import re
from pathlib import Path

import pytest

from servetune.errors import InputError, UnknownName
from servetune.hardware import (
    device,
    device_names,
    instance,
    link,
    load_devices,
    node,
    user_devices_path,
)
from servetune.hardware.rows import DeviceRow, LinkRow
from servetune.perf.roofline.collectives import all_reduce_law
from servetune.units import GB

OWN = """
[[device]]
name = "Prototype 7"
aliases = ["p7"]
vendor = "me"
architecture = "new"
memory_mib = 1000
memory_gb_per_s = 10
bf16_tflops = 1
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty home, and no word about devices."""
    monkeypatch.delenv("SERVETUNE_DEVICES")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def write(path, text=OWN):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_a_file_there_are_the_bundled_devices(home):
    assert user_devices_path() is None
    with pytest.raises(UnknownName):
        device("Prototype 7")


def test_the_file_of_the_home_is_read_without_being_named(home):
    path = write(home / ".config" / "servetune" / "devices.toml")
    assert user_devices_path() == path
    assert device("p7").memory_bytes_per_s == 10 * GB
    assert node(gpu="prototype7", count=2).label == "2x Prototype 7"
    assert device_names()[-1] == "Prototype 7"
    assert "Prototype 7" in load_devices()


def test_a_near_name_is_offered_from_the_own_devices_too(home):
    write(home / ".config" / "servetune" / "devices.toml")
    with pytest.raises(UnknownName) as caught:
        device("prototype 8")
    assert "Prototype 7" in caught.value.hint


def test_xdg_moves_the_place(home, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "settings"))
    path = write(home / "settings" / "servetune" / "devices.toml")
    assert user_devices_path() == path


def test_the_variable_comes_before_the_places(home, monkeypatch):
    write(home / ".config" / "servetune" / "devices.toml")
    other = write(home / "other.toml", OWN.replace("Prototype 7", "Prototype 8"))
    monkeypatch.setenv("SERVETUNE_DEVICES", "~/other.toml")
    assert user_devices_path() == other
    assert device("Prototype 8")
    with pytest.raises(UnknownName):
        device("Prototype 7")


def test_an_empty_variable_switches_own_devices_off(home, monkeypatch):
    write(home / ".config" / "servetune" / "devices.toml")
    monkeypatch.setenv("SERVETUNE_DEVICES", "")
    assert user_devices_path() is None


def test_a_file_that_is_named_has_to_be_there(home, monkeypatch):
    monkeypatch.setenv("SERVETUNE_DEVICES", str(home / "absent.toml"))
    with pytest.raises(InputError, match=r"absent\.toml' cannot be read"):
        device("L4")


def test_a_change_of_the_file_is_seen(home):
    path = write(home / ".config" / "servetune" / "devices.toml")
    assert device("p7").bf16_flops == 1e12
    path.write_text(OWN.replace("bf16_tflops = 1", "bf16_tflops = 12.5"))
    assert device("p7").bf16_flops == 12.5e12


def test_a_wrong_file_is_refused_with_its_place(home):
    path = write(home / ".config" / "servetune" / "devices.toml", OWN.replace("1000", "'1000'"))
    with pytest.raises(InputError) as caught:
        device("L4")
    assert str(path) in caught.value.message
    assert "line 7: memory_mib" in caught.value.message


def test_a_file_for_one_call_comes_after_the_users_own(home):
    write(home / ".config" / "servetune" / "devices.toml")
    extra = write(home / "extra.toml", OWN.replace("= 10\n", "= 20\n"))
    assert device("p7", extra_toml=extra).memory_bytes_per_s == 20 * GB
    assert device("p7").memory_bytes_per_s == 10 * GB


LANES = """
[[link]]
name = "pcie4-x8"
gb_per_s = 15.75
peer_to_peer = false
"""


def test_own_links_join_own_and_bundled_devices(home):
    text = OWN + 'link = "pcie4-x8"\n' + LANES
    write(home / ".config" / "servetune" / "devices.toml", text)
    assert link("pcie4-x8").bytes_per_s == 15.75 * GB
    assert node(gpu="p7", count=2).link == link("pcie4-x8")
    assert node(gpu="RTX 4090", count=2, link_name="pcie4-x8").link == link("pcie4-x8")
    half, whole = (all_reduce_law(link(name), 2) for name in ("pcie4-x8", "pcie4"))
    assert half.bytes_per_s == pytest.approx(whole.bytes_per_s / 2)
    assert half.latency_s == whole.latency_s


def test_an_own_link_replaces_the_bundled_one_of_its_name(home):
    bundled = instance("g6.12xlarge").link
    write(home / ".config" / "servetune" / "devices.toml", LANES.replace("pcie4-x8", bundled.name))
    assert instance("g6.12xlarge").link.bytes_per_s == 15.75 * GB != bundled.bytes_per_s
    with pytest.raises(UnknownName, match="pcie4-x8"):
        link("pcie4-x8")


def test_a_link_for_one_call_joins_its_devices(home):
    extra = write(home / "extra.toml", OWN + 'link = "pcie4-x8"\n' + LANES)
    assert node(gpu="p7", count=2, extra_toml=extra).link.name == "pcie4-x8"
    with pytest.raises(UnknownName, match="pcie4-x8"):
        link("pcie4-x8")


def test_the_guides_example_loads_and_says_what_the_guide_says(home):
    guide = Path(__file__).parents[2] / "docs" / "guides" / "your-own-hardware.md"
    blocks = re.findall(r"```toml\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL)
    text = "\n".join(blocks)
    path = write(home / ".config" / "servetune" / "devices.toml", text)
    known = load_devices()
    named = re.findall(r'^name = "(.*)"', text, re.MULTILINE)
    assert len(named) >= 3
    linked = {name for name in named if name not in known}
    assert linked == {"PCIe 4.0 x8"} == {link(name).name for name in linked}
    assert node(gpu="Two-slot L40S", count=2).link.bytes_per_s == 15.75 * GB
    assert device("L4").bf16_flops == 90e12, "the example corrects the bundled L4"
    assert device("acme-x1").fp8_flops == 2 * device("acme-x1").bf16_flops
    assert device("NVIDIA H100 1g.10gb").name == "H100 1g.10gb"
    # Every key that a device may have is in the guide's table.
    for key in (*DeviceRow.__struct_fields__, *LinkRow.__struct_fields__):
        assert f"| `{key}` |" in guide.read_text(encoding="utf-8"), key
    assert path == user_devices_path()
