"""Machines: accelerators, links, instances and what is plugged in here."""

from servetune.hardware.catalog import device, device_names, link, load_devices, node
from servetune.hardware.detect import detect, detect_cpu, device_of_card
from servetune.hardware.device import Device, Link, Node, Price
from servetune.hardware.own import own_devices_path
from servetune.hardware.rental import Service, cheapest_instance_with, instance, instances

__all__ = [
    "Device",
    "Link",
    "Node",
    "Price",
    "Service",
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
    "own_devices_path",
]
