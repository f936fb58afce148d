"""Real runs against servers that tell every secret they know: none reaches a file or a terminal."""

import gzip
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from planted import ENVIRONMENT, FORMATS, SECRET, leaks, texts

import forked
from servetune.engines.cause import diagnose
from servetune.errors import EngineDied
from servetune.servers.ports import free_port
from servetune.servers.process import ServerOptions, ServerProcess

SERVERS = Path(__file__).with_name("servers")
ENV = {**os.environ, **ENVIRONMENT}
HEADER = ("--header", "X-Api-Key: $TENANT", "--api-key-env", "SERVING")
BODY = ("--extra-body", json.dumps({"api_key": SECRET, "user": "x"}))


def leaking(folder, *outputs):
    """Names of the files, or texts of the terminal, that show a planted credential; the log of a
    server is left to its user.
    """
    found = [text for output in outputs for text in leaks(output)]
    for path in folder.rglob("*"):
        if not path.is_file() or path.parent.name == "tiny":
            continue
        text = path.read_bytes().decode(errors="replace")
        if path.suffix == ".log":
            assert path.stat().st_mode & 0o777 == 0o600
        elif leaks(text):
            found.append((path.name, leaks(text)[0]))
    return found


@pytest.fixture
def talker(tmp_path):
    """A function that starts `talker.py` in a mood; its URL and its log."""
    started = []

    def start(mood):
        port, log = free_port(), tmp_path / f"{mood}.log"
        words = [sys.executable, str(SERVERS / "talker.py"), mood, "--port", str(port)]
        log.touch(0o600)
        with log.open("wb") as out:
            started.append(subprocess.Popen(words, stdout=out, stderr=out, env=ENV))
        while "\nlistening\n" not in log.read_text():
            assert started[-1].poll() is None
            time.sleep(0.02)
        return f"http://127.0.0.1:{port}", log

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "mood",
    ["dies", "refuses", *(pytest.param(m, marks=pytest.mark.slow) for m in ("breaks", "falls"))],
)
def test_no_file_of_a_study_has_a_secret_that_its_server_tells(sweep, mood):
    settings = f"api_key={SECRET};hf_token={SECRET};max_num_seqs=[8]"
    passed = [f"--server-env={name}" for name in ("HF_TOKEN", "DB_PASSWORD", "TENANT")]
    done = sweep.run(
        sweep.server("talker.py", mood), "--retries", 0, *HEADER, *BODY, *passed,
        server_args=settings, output_len=4, client="max_concurrency=[2];num_prompts=400", env=ENV,
    )  # fmt: skip
    assert "dashboard" in done.stderr, done.stderr
    assert leaking(sweep.folder, done.stdout, done.stderr) == []
    log = next(sweep.folder.rglob("server-*.log")).read_text()
    assert f"HF_TOKEN={ENVIRONMENT['HF_TOKEN']}" in log  # whoever needs it has it
    assert f"'--api-key={SECRET}'" in log
    again = forked.run(
        [*forked.COMMAND, "report", "q.jsonl", "--output-json", "again.json"],
        cwd=sweep.folder, env=ENV,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert leaking(sweep.folder, again.stdout, again.stderr) == []


def test_the_end_of_a_server_is_told_without_what_it_told(tmp_path):
    told = "; ".join(texts()).replace("\n", " ")
    program = (
        f"print({told!r}); print(*{texts()!r}, sep='\\n'); raise SystemExit('Error: ' + {told!r})"
    )
    command = [sys.executable, "-c", program]
    one = ServerProcess(
        command, log_path=tmp_path / "server.log", port=free_port(), options=ServerOptions()
    )
    with one, pytest.raises(EngineDied) as died:
        one.wait_ready(30)
    assert "[redacted]" in died.value.log_tail
    shown = [str(died.value), died.value.log_tail, one.log_tail(), one.cause().message]
    assert [leaks(text) for text in shown] == [[]] * 4
    assert leaks((tmp_path / "server.log").read_text())


@pytest.mark.parametrize("most", range(200, 280, 3))
def test_the_cause_of_an_end_is_cut_after_secrets_are_gone(most):
    line = f"RuntimeError: {'x' * (most - 40)} {FORMATS[0]} is not a valid {FORMATS[1]}"
    assert leaks(diagnose(line).message) == []


@pytest.mark.parametrize(
    "mood", ["breaks", *(pytest.param(one, marks=pytest.mark.slow) for one in ("refuses", "names"))]
)
def test_no_file_of_a_bench_has_a_secret_that_its_server_tells(talker, tmp_path, mood):
    url, log = talker(mood)
    words = ["bench", url, *(() if mood == "names" else ("--model", "m")), "-c", "4"]
    words += ["-n", "800", "--out", "out", "--json"]
    words += ["--input-tokens", "16", "--output-tokens", "4", "--max-failures", "10000"]
    words += ["--max-error-rate", "1", "--scrape-every", "1", "--write-config", "written.toml"]
    done = forked.run([*forked.COMMAND, *words, *HEADER, *BODY], cwd=tmp_path, env=ENV, timeout=60)
    assert (tmp_path / "out" / "bench.requests.csv").exists(), done.stderr
    assert leaking(tmp_path, done.stdout, done.stderr) == []
    seen = log.read_text()
    assert f"'X-Api-Key': '{ENVIRONMENT['TENANT']}'" in seen
    assert f"'Authorization': 'Bearer {ENVIRONMENT['SERVING']}'" in seen


class Collector(BaseHTTPRequestHandler):
    """Collector of spans that keeps what it got."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        packed = self.headers.get("Content-Encoding") == "gzip"
        self.server.got.append(gzip.decompress(body) if packed else body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Say nothing."""


def test_no_span_of_a_bench_has_a_secret_that_its_server_tells(talker, tmp_path):
    pytest.importorskip("opentelemetry.sdk")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    url, _ = talker("refuses")
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
        collector.got = []
        threading.Thread(target=collector.serve_forever, args=(0.01,), daemon=True).start()
        words = ["bench", url, "--model", "m", "-c", "4", "-n", "800", "--input-tokens", "16"]
        words += ["--output-tokens", "4", "--max-failures", "10000", "--max-error-rate", "1"]
        words += ["--otel", f"http://127.0.0.1:{collector.server_port}"]
        done = forked.run([*forked.COMMAND, *words, *HEADER], cwd=tmp_path, env=ENV, timeout=60)
        collector.shutdown()
    told = b"".join(collector.got).decode("latin-1")
    assert "sent 800 spans" in done.stderr
    assert told.count("[redacted]") > 100
    assert leaks(told + done.stdout + done.stderr) == []
