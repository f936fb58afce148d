"""Where and under which conditions a server's process runs."""

from servetune.engines.launchers.placement import Placement, visible_devices

__all__ = ["Placement", "visible_devices"]
