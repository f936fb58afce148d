"""Tools for agents over the Model Context Protocol, made of the API's requests."""

from servetune.agents.access import Permissions
from servetune.agents.serving import serve_mcp
from servetune.agents.tools import TOOLS, Tool, tools_here

__all__ = ["TOOLS", "Permissions", "Tool", "serve_mcp", "tools_here"]
