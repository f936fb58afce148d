"""Deployment of Modular MAX in its images.

Sources: container page of MAX's documentation; tags such as 26.4.0 of `modular/max-nvidia-full`
and `modular/max-amd` as others pin them, who start `max serve` in it by itself (November 2026).
Its metrics stand on a port of their own, so no autoscaler asks for the requests in flight.
"""

from __future__ import annotations

from collections.abc import Mapping

from servetune.engines.shipping import Build, Shipping, whole_experts
from servetune.engines.words import Settings
from servetune.plan.plan import Setting


def _read(settings: Settings, _variables: Mapping[str, str]) -> dict[str, Setting]:
    fields: dict[str, Setting] = {}
    devices = str(settings.get("devices", ""))
    count = devices.count(",") + 1
    if count > 1 and devices == "gpu:" + ",".join(map(str, range(count))):
        del settings["devices"]
        copies = settings.pop("data_parallel_degree", 1)
        assert isinstance(copies, int)
        fields |= {"tensor_parallel": count // copies, "data_parallel": copies}
    if settings.get("quantization_encoding") == "float8_e4m3fn":
        del settings["quantization_encoding"]
        fields["quantization"] = "fp8"
    graphs = settings.pop("device_graph_capture", None)
    if graphs is not None:
        fields["enforce_eager"] = not graphs
    return fields | whole_experts(settings, "ep_size", fields.get("tensor_parallel", 1))


SHIPPING = Shipping(
    builds=(
        Build(kind="cuda", repository="modular/max-nvidia-full", tag=str),
        Build(
            kind="rocm",
            repository="modular/max-amd",
            tag=str,
            architectures=("cdna3", "cdna4"),
        ),
    ),
    usual_version="26.7.0",
    install="modular",
    read=_read,
)
