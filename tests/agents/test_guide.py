"""The guide's configurations are JSON that starts a server with options that there are."""

import json
import re
from pathlib import Path

from servetune import api
from servetune.agents import tools_here
from servetune.cli.mcp import mcp

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "agents.md").read_text("utf-8")


def test_the_configurations_parse_and_have_options_of_the_command():
    snippets = [json.loads(each) for each in re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)]
    assert len(snippets) == 3
    for snippet in snippets:
        [servers] = snippet.values()
        server = servers["servetune"]
        if "url" in server:
            assert server["url"].endswith("/mcp")
            continue
        assert (server["command"], server["args"][0]) == ("servetune", "mcp")
        given = mcp.make_context(
            "mcp", server["args"][1:], help_option_names=["-h", "--help"]
        ).params
        assert given["folder"] != api.Mcp().folder


def test_the_guide_names_every_tool_and_every_flag():
    assert [name for name in tools_here() if f"`{name}`" not in GUIDE] == []
    flags = [field.names[0] for field in api.fields_of(api.Mcp)]
    assert [flag for flag in flags if flag not in GUIDE] == []
