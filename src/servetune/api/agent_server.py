"""Request of the server for agents: what it may read, write and start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from servetune.api.request import Request
from servetune.option import Count, option


class Mcp(Request, frozen=True, kw_only=True):
    """Tools for agents, over the Model Context Protocol."""

    verb: ClassVar[str] = "mcp"
    first: ClassVar[str] = "folder"
    group: ClassVar[str] = "Server"

    folder: Annotated[
        Path,
        option("Folder of the runs that agents start; it is made where missing.", metavar="DIR"),
    ] = Path("servetune-mcp")
    http: Annotated[
        str | None,
        option(
            "Loopback address for streamable HTTP: a port, HOST:PORT, or auto for a free port.",
            metavar="[HOST:]PORT",
            default="standard input and output",
        ),
    ] = None
    allow_read: Annotated[
        tuple[Path, ...],
        option("Further folder that tools may read; repeatable.", metavar="DIR", group="Access"),
    ] = ()
    allow_write: Annotated[
        tuple[Path, ...],
        option(
            "Further folder that tools may write and read; repeatable.",
            metavar="DIR",
            group="Access",
        ),
    ] = ()
    allow_launch: Annotated[
        bool,
        option(
            "Permission to start runs: engines and load on this machine.",
            group="Access",
        ),
    ] = False
    allow_url: Annotated[
        tuple[str, ...],
        option(
            "Address, or the beginning of addresses, to which runs may send load besides those of "
            "this machine; repeatable.",
            metavar="PREFIX",
            group="Access",
        ),
    ] = ()
    allow_aws: Annotated[
        bool, option("Permission to use AWS, which costs money.", group="Access")
    ] = False
    allow_commands: Annotated[
        bool,
        option(
            "Permission for programs, commands, images, environment variables and engine settings "
            "of the agent's choice, which can do all that you can.",
            group="Access",
        ),
    ] = False
    most_runs: Annotated[
        Count, option("Most runs in progress at once.", metavar="COUNT", group="Access")
    ] = 1
