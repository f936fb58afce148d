"""Both transports, with the protocol's own client: a process over stdio, a server over HTTP."""

import contextlib
import json
import socket
import subprocess
import sys
import textwrap
import threading

import httpx2
import pytest
import uvicorn
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from servetune.agents.access import Permissions
from servetune.agents.server import AgentTools
from servetune.agents.serving import PATH, http_app, loopback_address
from servetune.errors import InputError

ESTIMATE = {"model": "Qwen/Qwen3-4B", "gpu": "L4", "concurrency": 8}


@pytest.mark.slow
async def test_over_stdio_nothing_but_the_protocol_is_on_standard_output(tmp_path):
    """The command itself, in which the API prints in every way that there is."""
    noisy = textwrap.dedent(
        """
        import os, subprocess, sys
        import servetune.api.estimation as estimation
        from servetune.cli.main import main
        quiet = estimation.estimate
        def estimate(request):
            print("noise")
            os.write(1, b"more noise\\n")
            subprocess.run([sys.executable, "-c", "print('noise of a child')"], check=True)
            return quiet(request)
        estimation.estimate = estimate
        sys.argv = ["servetune", "mcp", "--folder", sys.argv[1]]
        main()
        """
    )
    command = StdioServerParameters(
        command=sys.executable,
        args=["-c", noisy, str(tmp_path / "own")],
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    async with Client(command, read_timeout_seconds=120) as client:
        tools = (await client.list_tools()).tools
        result = await client.call_tool("estimate", ESTIMATE)
    assert "estimate" in {tool.name for tool in tools}
    assert not result.is_error
    assert "Qwen/Qwen3-4B" in result.content[0].text
    assert (tmp_path / "own").is_dir()


@pytest.mark.parametrize(
    "also_writes",
    [
        pytest.param(True, id="closes both", marks=pytest.mark.slow),
        pytest.param(False, id="only stops reading"),
    ],
)
def test_over_stdio_a_client_that_goes_away_ends_the_server_quietly(tmp_path, also_writes):
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}}
    hello["clientInfo"] = {"name": "client", "version": "1"}
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]
    command = [sys.executable, "-m", "servetune", "mcp", "--folder", str(tmp_path / "own")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as server:
        server.stdin.write(f"{json.dumps(messages[0])}\n".encode())
        server.stdin.flush()
        assert b"result" in server.stdout.readline()
        server.stdout.close()
        if also_writes:
            for message in messages[1:]:
                server.stdin.write(f"{json.dumps(message)}\n".encode())
            server.stdin.close()
        assert server.stderr.read() == b""
    assert server.returncode == 0


@pytest.fixture
def served(tmp_path):
    """Port of a server over HTTP whose token is `right`."""
    tools = AgentTools(Permissions(folder=tmp_path.resolve()))
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(http_app(tools.server(), "right"), log_level="error", lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join()
    listening.close()


async def test_over_http_tools_answer_whoever_has_the_token_and_a_loopback_name(served):
    address = f"http://127.0.0.1:{served}{PATH}"
    right = {"Authorization": "Bearer right"}
    async with httpx2.AsyncClient(headers=right, timeout=60) as http:
        async with Client(streamable_http_client(address, http_client=http)) as client:
            result = await client.call_tool("estimate", ESTIMATE)
        assert not result.is_error
        assert result.structured_content["result"]

        async def status(**headers):
            ask = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
            accepts = {"Accept": "application/json, text/event-stream"}
            found = await http.post(address, json=ask, headers={**accepts, **headers})
            return found.status_code

        assert await status(Authorization="Bearer wrong") == 401
        assert await status(Host="evil.example") == 421
        assert await status(Origin="http://evil.example") == 403


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("8765", ("127.0.0.1", 8765)),
        ("localhost:80", ("127.0.0.1", 80)),
        ("[::1]:80", ("::1", 80)),
        ("auto", ("127.0.0.1", 0)),
    ],
)
def test_addresses_are_of_the_loopback(text, address):
    assert loopback_address(text) == address


@pytest.mark.parametrize("text", ["0.0.0.0:80", "192.168.1.2:80", "x", "127.0.0.1:99999", ""])
def test_other_addresses_are_refused(text):
    with pytest.raises(InputError):
        loopback_address(text)


@pytest.mark.slow
async def test_a_call_that_is_cancelled_stops_its_run_and_keeps_what_it_has(agent):
    import asyncio

    from agent_processes import QUICK

    slow = {**QUICK, "concurrency": [*range(1, 61)], "requests": 1000, "output_json": "q.json"}
    async with agent(launch=True) as client:
        begun = asyncio.Event()

        async def progress(done, _total, _message):
            if done:
                begun.set()

        task = asyncio.create_task(
            client.call_tool("tune", {**slow, "wait": True}, progress_callback=progress)
        )
        await begun.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        over = await client.call_tool("follow", {"source": "q.jsonl", "wait_s": 60})
    end = over.structured_content["result"]
    assert end["phase"] == "interrupted"
    assert 1 <= end["done"] < 120
