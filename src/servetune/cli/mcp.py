"""`servetune mcp`: tools for agents, over the Model Context Protocol."""

from __future__ import annotations

from servetune import api
from servetune.cli.derive import verb


@verb(api.Mcp)
def mcp(request: api.Mcp) -> int:
    """Serve tools to agents: estimate, sweep, simulate, tune, follow, recommend, explain.

    Without the flags under Access nothing is launched, sent, spent, or written outside --folder.

    \b
    servetune mcp --folder runs --allow-read results
    servetune mcp --folder runs --allow-launch --http 8765
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    from servetune.agents import serve_mcp

    serve_mcp(request)
    return 0
