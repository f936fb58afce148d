"""A server of tools, and the protocol's own client in the same process."""

import contextlib
import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="pip install 'servetune[mcp]'")

from mcp import Client

# What these tests share is no package of its own.
sys.path.insert(0, str(Path(__file__).parent))

from agent_processes import QUICK

import servetune as st
from servetune.agents.access import Permissions
from servetune.agents.server import AgentTools


@pytest.fixture(scope="session")
def journal(tmp_path_factory):
    """Journal of a small finished study."""
    folder = tmp_path_factory.mktemp("journal")
    st.tune(**QUICK, output_json=folder / "tune.json")
    return folder / "tune.jsonl"


@pytest.fixture
def agent(tmp_path):
    """A function that gives a client of a server with some permissions, and its folder."""
    folder = (tmp_path / "own").resolve()
    folder.mkdir()

    @contextlib.asynccontextmanager
    async def connected(most_runs=1, **permissions):
        tools = AgentTools(Permissions(folder=folder, **permissions), most_runs)
        async with Client(tools.server()) as client:
            yield client

    connected.folder = folder
    return connected
