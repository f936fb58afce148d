"""Servers of an earlier servetune: real processes whose owner was killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from servetune.servers.leftovers import OWNER_MARK, find_leftovers, marks_of
from servetune.servers.ports import free_port, listening_ports

pytestmark = pytest.mark.xdist_group("processes")

SERVER = """
import http.server, sys
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), None).serve_forever()
"""


def listening(pid, port):
    for _ in range(1500):
        if port in listening_ports(pid):
            return True
        time.sleep(0.02)
    return False


def test_a_server_whose_servetune_is_gone_is_found_and_named(tmp_path):
    owner = subprocess.Popen(["sleep", "600"])
    begun = begun_of(owner.pid)
    environment = {
        **os.environ,
        OWNER_MARK: f"{owner.pid}:{begun}",
        "SERVETUNE_SERVER_LOG": str(tmp_path / "server.log"),
    }
    port = free_port()
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(port)], env=environment)
    try:
        assert listening(server.pid, port)
        assert server.pid not in {one.pid for one in find_leftovers()}, "its owner lives"
        owner.kill()
        owner.wait()
        [found] = [one for one in find_leftovers() if one.pid == server.pid]
        assert found.ports == (port,)
        assert found.owner_pid == owner.pid
        assert found.log_path == str(tmp_path / "server.log")
        assert found.resident_bytes > 1_000_000
        assert str(port) in found.label
        assert str(server.pid) in found.label
    finally:
        for process in (server, owner):
            process.send_signal(signal.SIGKILL)
            process.wait()


def test_an_owner_whose_number_came_again_is_gone():
    # This very process has the number, and began at another time.
    server = subprocess.Popen(["sleep", "600"], env={**os.environ, OWNER_MARK: f"{os.getpid()}:1"})
    try:
        # A program that has just begun has no environment yet, for the kernel's while.
        deadline_s = time.monotonic() + 10
        while server.pid not in {one.pid for one in find_leftovers()}:
            assert time.monotonic() < deadline_s
    finally:
        server.kill()
        server.wait()


def test_what_this_process_started_is_no_leftover(tmp_path):
    server = subprocess.Popen(["sleep", "600"], env={**os.environ, **marks_of(tmp_path / "log")})
    try:
        assert server.pid not in {one.pid for one in find_leftovers()}
    finally:
        server.kill()
        server.wait()


def begun_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
