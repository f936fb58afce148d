import pytest

from servetune.errors import InputError
from servetune.hardware.rows import DeviceRow, InstanceRow, LinkRow, bundled, described_hardware

GOOD = """\
# a comment
[[device]]
name = "First"
vendor = "me"
architecture = "new"
memory_mib = 1000
memory_gb_per_s = 10
bf16_tflops = 1

[[device]]
name = "Mine"
vendor = "me"
architecture = "new"
memory_mib = 2000
memory_gb_per_s = 20.5
bf16_tflops = 2
tdp_watts = 75
link = "pcie4"
"""


def test_a_device_is_read_with_what_is_left_out_at_its_default():
    (first, mine), links = described_hardware(GOOD, "mine.toml", ("pcie4",))
    assert links == ()
    assert (first.link, first.tdp_watts, first.half_dtype) == ("pcie4", None, "bf16")
    assert (mine.tdp_watts, mine.memory_gb_per_s) == (75, 20.5)


def test_the_bundled_tables_have_these_rows():
    assert bundled("devices.toml", "device", DeviceRow)
    assert bundled("links.toml", "link", LinkRow)
    assert bundled("ec2_instances.toml", "instance", InstanceRow)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('[[device]]\nname = "Mine"', '[[device]\nname = "Mine"', "at line 10"),
        ("memory_mib = 2000", "memory_mib = 'much'", "line 14: memory_mib expected a number"),
        ("memory_mib = 2000", "memory_mib = 0", "line 14: memory_mib must be above zero, got 0"),
        ("memory_mib = 2000", "memory_mib = -3", "line 14: memory_mib must be above zero"),
        ("memory_mib = 2000", "memory_mib = nan", "line 14: memory_mib must be above zero"),
        ("memory_mib = 2000", "memory_mib = inf", "line 14: memory_mib must be above zero"),
        ("memory_mib = 2000", "memory_mib = true", "line 14: memory_mib expected a number"),
        ("memory_mib = 2000\n", "", "line 10: memory_mib is missing"),
        ("tdp_watts = 75", "tdp_wats = 75", "line 17: tdp_wats is not a key of a device"),
        ("tdp_watts = 75", "dies = 0", "line 17: dies must be above zero, got 0"),
        (
            "tdp_watts = 75",
            "matrix_share = 1.5",
            "line 17: matrix_share is a share of at most 1, got 1.5",
        ),
        (
            "tdp_watts = 75",
            "memory_share = 2.0",
            "line 17: memory_share is a share of at most 1, got 2",
        ),
        ("tdp_watts = 75", 'half_dtype = "bf8"', "line 17: half_dtype invalid enum value 'bf8'"),
        ('link = "pcie4"', 'link = "string"', "line 18: link is unknown: 'string'"),
        ('name = "Mine"', 'name = " "', "line 11: name must not be empty"),
        ('name = "Mine"', 'name = "First"', "line 11: name 'First' is already described above"),
        ("# a comment", "[[devices]]", "has 'devices', but only"),
        ("# a comment", "x = 1", "has 'x', but only"),
    ],
)
def test_a_wrong_device_is_refused_with_its_line_and_key(old, new, message):
    assert old in GOOD
    with pytest.raises(InputError) as caught:
        described_hardware(GOOD.replace(old, new, 1), "mine.toml", ("pcie4",))
    assert message in caught.value.message
    assert "'mine.toml'" in caught.value.message
    assert caught.value.hint


def test_a_misspelt_key_is_offered_the_right_one():
    with pytest.raises(InputError) as caught:
        described_hardware(GOOD.replace("tdp_watts", "tdp_wats"), "mine.toml", ("pcie4",))
    assert "tdp_watts" in caught.value.hint


@pytest.mark.parametrize("text", ["", "device = 3", "device = []"])
def test_a_file_without_devices_is_refused(text):
    with pytest.raises(InputError, match=r"no \[\[device\]\] or \[\[link\]\] table"):
        described_hardware(text, "mine.toml", ("pcie4",))


def test_a_device_in_an_inline_array_is_counted_instead():
    text = 'device = [{ name = "Mine" }]'
    with pytest.raises(InputError, match=r"'mine.toml', device 1: vendor is missing"):
        described_hardware(text, "mine.toml", ("pcie4",))


LINKED = (
    GOOD.replace('link = "pcie4"', 'link = "riser"')
    + """
[[link]]
name = "riser"
gb_per_s = 15.75
peer_to_peer = false
"""
)


def test_links_are_read_beside_the_devices_that_they_join():
    found = described_hardware(LINKED, "mine.toml", ("pcie4",))
    (riser,) = found.links
    assert (riser.gb_per_s, riser.peer_to_peer, riser.most_devices) == (15.75, False, None)
    assert found.devices[-1].link == "riser"
    alone = LINKED[LINKED.index("[[link]]") :]
    assert described_hardware(alone, "mine.toml", ()) == ((), found.links)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("gb_per_s = 15.75", "gb_per_s = 0", "line 22: gb_per_s must be above zero, got 0"),
        ("gb_per_s = 15.75", "gb_per_s = 'x8'", "line 22: gb_per_s expected a number, got a text"),
        ("gb_per_s = 15.75\n", "", "line 20: gb_per_s is missing"),
        (
            "peer_to_peer = false",
            "peer_to_peer = 1",
            "line 23: peer_to_peer expected true or false",
        ),
        ("peer_to_peer = false", "", "line 20: peer_to_peer is missing"),
        (
            "peer_to_peer = false",
            "peer_to_peer = true\nlanes = 8",
            "line 24: lanes is not a key of",
        ),
        (
            "peer_to_peer = false",
            "peer_to_peer = true\nbeyond_gb_per_s = 8",
            "line 24: beyond_gb_per_s needs most_devices",
        ),
        (
            "peer_to_peer = false",
            "peer_to_peer = true\nadapters = true",
            "line 24: adapters needs beyond_gb_per_s",
        ),
        ('name = "riser"', 'name = ""', "line 21: name must not be empty"),
        ('name = "riser"', 'name = "cable"', "line 18: link is unknown: 'riser'"),
    ],
)
def test_a_wrong_link_is_refused_with_its_line_and_key(old, new, message):
    head, tail = LINKED[: LINKED.index("[[link]]")], LINKED[LINKED.index("[[link]]") :]
    assert old in tail
    with pytest.raises(InputError) as caught:
        described_hardware(head + tail.replace(old, new, 1), "mine.toml", ("pcie4",))
    assert message in caught.value.message
