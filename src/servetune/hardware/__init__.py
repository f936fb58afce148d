"""Machines: accelerators, links, cloud instances and detection of local hardware."""

from servetune.hardware.catalog import device, device_names, link, load_devices, node
from servetune.hardware.detect import detect, detect_cpu, device_for_card
from servetune.hardware.device import Device, Node, Price, cost_per_million_tokens_usd
from servetune.hardware.instance_catalog import Service, cheapest_instance_with, instance, instances
from servetune.hardware.user_devices import user_devices_path

__all__ = [
    "Device",
    "Node",
    "Price",
    "Service",
    "cheapest_instance_with",
    "cost_per_million_tokens_usd",
    "detect",
    "detect_cpu",
    "device",
    "device_for_card",
    "device_names",
    "instance",
    "instances",
    "link",
    "load_devices",
    "node",
    "user_devices_path",
]
