"""Servers as processes: the only room that starts, watches, places and stops them."""

from servetune.servers.copies import ServerCopies
from servetune.servers.external import ExternalServer
from servetune.servers.launch import launch_environment, server_of
from servetune.servers.ports import claimed_port, free_port, require_free_port
from servetune.servers.process import ServerOptions, ServerProcess

__all__ = [
    "ExternalServer",
    "ServerCopies",
    "ServerOptions",
    "ServerProcess",
    "claimed_port",
    "free_port",
    "launch_environment",
    "require_free_port",
    "server_of",
]
