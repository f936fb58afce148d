"""Machines: accelerators, links, instances and what is plugged in here."""

from servetune.hardware.catalog import (
    cheapest_instance_with,
    device,
    device_names,
    instance,
    instances,
    link,
    load_devices,
    node,
)
from servetune.hardware.detect import detect, detect_cpu, device_of_card
from servetune.hardware.device import Device, Link, Node, Price

__all__ = [
    "Device",
    "Link",
    "Node",
    "Price",
    "cheapest_instance_with",
    "detect",
    "detect_cpu",
    "device",
    "device_names",
    "device_of_card",
    "instance",
    "instances",
    "link",
    "load_devices",
    "node",
]
