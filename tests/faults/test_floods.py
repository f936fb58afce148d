"""Answers and requests without end, between real processes: little memory, and a reason."""

import contextlib
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

SERVERS = Path(__file__).with_name("servers")
MEMORY_LIMIT_BYTES = 300_000_000
WITH_ITS_MEMORY = (
    "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:]);"
    "print('PEAK', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024);"
    "sys.exit(done.returncode)"
)
SERVETUNE = [sys.executable, "-m", "servetune"]


@contextlib.contextmanager
def started(command, words, **options):
    """A server, and the line that says where it listens."""
    with subprocess.Popen(command, text=True, **options) as server:
        stream = server.stdout or server.stderr
        line = ""
        while words not in line:
            line = stream.readline()
            assert line, "it ended before it listened"
        try:
            yield server, int(line.rpartition(":")[2].split()[-1])
        finally:
            server.kill()


def benched(folder, kind, model=("--model", "tiny")):
    flood = [sys.executable, SERVERS / "flood.py", "--port", "0", "--kind", kind]
    with started(flood, "listening", stdout=subprocess.PIPE) as (_, port):
        load = ["--requests", "8", "--concurrency", "4", "--timeout", "20"]
        size = ["--input-tokens", "16", "--output-tokens", "1"]
        url = f"http://127.0.0.1:{port}"
        words = [*SERVETUNE, "bench", url, *model, *load, *size]
        return subprocess.run(
            [sys.executable, "-c", WITH_ITS_MEMORY, *words],
            check=False,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
        )


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("event", "malformed: an event of more than 16 MiB"),
        ("chunk", "malformed: not HTTP: a chunk of more than 16 MiB"),
        pytest.param("head", "malformed: not HTTP: a head without end", marks=SLOW),
        pytest.param("interim", "malformed: not HTTP: interim answers without end", marks=SLOW),
        pytest.param("error", "HTTP 500", marks=SLOW),
        pytest.param("tokens", "malformed: the server counts 0 and 2147483647 tokens", marks=SLOW),
        pytest.param("html", "malformed: asked for a stream, was sent text/html", marks=SLOW),
    ],
)
def test_answers_without_end_are_failed_requests(tmp_path, kind, words):
    done = benched(tmp_path, kind)
    assert done.returncode == 3, done.stderr
    assert f"8 x {words}" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert int(done.stdout.rpartition("PEAK ")[2]) < MEMORY_LIMIT_BYTES


@pytest.mark.parametrize(
    "kind",
    ["models", *(pytest.param(kind, marks=SLOW) for kind in ("metrics", "deep", "infinite"))],
)
def test_a_model_list_or_metrics_that_cannot_be_read_cost_no_run(tmp_path, kind):
    done = benched(tmp_path, kind)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.rpartition("PEAK ")[2]) < MEMORY_LIMIT_BYTES


def test_a_model_list_too_deep_to_be_read_is_an_error(tmp_path):
    done = benched(tmp_path, "deep", model=())
    assert done.returncode == 3
    assert "the server's list of models cannot be read" in done.stderr
    assert "Traceback" not in done.stderr


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"


def poured(port, beginning, block, most_bytes):
    """What the server answers to a client that sends without end, and how much it took."""
    sent = 0
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(beginning)
            while sent < most_bytes:
                client.sendall(block)
                sent += len(block)
        with contextlib.suppress(ConnectionError):
            return client.recv(65536)[:12], sent
    return b"", sent


def peak_bytes(process):
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no peak")


def is_healthy(port):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        return client.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_the_simulated_server_outlives_its_clients(tmp_path):
    body = json.dumps({"prompt": [1] * 10, "max_tokens": 4}).encode()
    good = HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    command = [*SERVETUNE, "simulate", "--serve", "Qwen/Qwen3-4B", "--gpu", "L4", "--port", "0"]
    with started(command, "listening on", stderr=subprocess.PIPE, cwd=tmp_path) as (server, port):
        before_bytes = peak_bytes(server)
        for beginning, block in (
            (HEAD, b"X-Noise: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n" * 2000),
            (HEAD + b"X: ", b"y" * 100_000),
            (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ", b"y" * 100_000),
        ):
            _, sent = poured(port, beginning, block, 400_000_000)
            assert sent < 20_000_000
            assert is_healthy(port)
        beginnings = (b"", b"POST", HEAD, HEAD + b"Content-Length: 9\r\n\r\n1")
        with contextlib.ExitStack() as stack:
            crowd = []
            for number in range(2000):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                client.sendall(beginnings[number % 4])
                crowd.append(client)
            began_s = time.monotonic()
            assert is_healthy(port)
            crowd[0].sendall(good)
            assert crowd[0].recv(12) == b"HTTP/1.1 200"
            assert time.monotonic() - began_s < 10
        for preface in (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        ):
            answer, _ = poured(port, preface, b"", 0)
            assert answer.startswith((b"HTTP/1.1 505", b"HTTP/1.1 404"))
        assert is_healthy(port)
        grown_bytes = peak_bytes(server) - before_bytes
        server.terminate()
        assert "Traceback" not in server.stderr.read()
    assert grown_bytes < MEMORY_LIMIT_BYTES
