"""What a study sends besides prompts: members of bodies, headers and keys, on the wire."""

import http.server
import json
import math
import shutil
import ssl
import subprocess
import threading
import time

import pytest
from collector import Collector, collecting

import servetune as st
from servetune.api.request import checked, read_config
from servetune.errors import InputError
from servetune.store import read_journal

LOAD = {"input_tokens": 8, "output_tokens": 4, "requests": 3, "concurrency": 1, "warmup": 0}
KEY = "a-key-of-the-tenant"


class _Double(http.server.BaseHTTPRequestHandler):
    """Server of completions that keeps what it was sent."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.heads.append((self.path, dict(self.headers)))
        self._reply(b'{"data": [{"id": "m"}]}', "application/json")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.heads.append((self.path, dict(self.headers)))
        if "stream" in body:  # not the one completion that shows that a server is ready
            self.server.bodies.append(body)
            if len(self.server.bodies) > self.server.slow_after:
                time.sleep(0.05)
        count = body["max_tokens"]
        events = [{"choices": [{"text": " a"}]} for _ in range(count)]
        usage = {"prompt_tokens": 8, "completion_tokens": count}
        events.append({"choices": [], "usage": usage})
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        self._reply(f"{text}data: [DONE]\n\n".encode(), "text/event-stream")

    def _reply(self, text, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@pytest.fixture
def double(request):
    """The server; over TLS where the test asks for it, with its certificate in `cafile`."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Double)
    server.cafile = ""
    if getattr(request, "param", "") == "tls":
        server.cafile, context = request.getfixturevalue("certificate")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.heads, server.bodies, server.daemon_threads = [], [], True
    server.slow_after = math.inf
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(10)


@pytest.fixture
def certificate(tmp_path):
    """A self-signed certificate for 127.0.0.1, and a context that serves with it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    key, path = tmp_path / "key.pem", tmp_path / "certificate.pem"
    options = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    options += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = [openssl, *options, "-keyout", str(key), "-out", str(path)]
    subprocess.run(made, capture_output=True, check=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path, key)
    return path, context


def tuned(double, folder, **options):
    scheme = "https" if double.cafile else "http"
    url = f"{scheme}://127.0.0.1:{double.server_address[1]}"
    place = {"engine": "external", "url": url, "gpu": "L4", "output_dir": folder}
    return st.tune("m", **place, **{**LOAD, **options})


def test_sampling_and_headers_are_sent_and_recorded(double, tmp_path, monkeypatch):
    monkeypatch.setenv("TENANT_KEY", KEY)
    found = tuned(
        double,
        tmp_path,
        temperature=0.5,
        min_tokens=True,
        header={"X-Tenant": "blue, green; red", "X-Api-Key": "$TENANT_KEY"},
        extra_body={"top_k": 1},
    )
    assert found.status == 0, found.trials.records[0].failure
    assert {(body["temperature"], body["min_tokens"], body["top_k"]) for body in double.bodies} == {
        (0.5, 4, 1)
    }
    posted = [headers for path, headers in double.heads if path == "/v1/completions"]
    assert len(posted) >= LOAD["requests"]
    for headers in posted:
        assert (headers["X-Tenant"], headers["X-Api-Key"]) == ("blue, green; red", KEY)
    [record] = read_journal(found.artifacts.journal)
    asked = record.config.client_args
    assert (asked["temperature"], asked["min_tokens"]) == (0.5, True)
    assert asked["header"] == "X-Tenant: blue, green; red\nX-Api-Key: $TENANT_KEY"
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or KEY not in path.read_text("utf-8", "replace"), path
    again = checked(st.Study, read_config(found.artifacts.configuration, st.Study))
    assert again.load.header == ("X-Tenant: blue, green; red", "X-Api-Key: $TENANT_KEY")


def test_client_arguments_send_what_options_send(double, tmp_path):
    once = tuned(double, tmp_path / "a", temperature=0.25, header="X-A: b")
    sent = double.bodies[-1]
    settings = {"temperature": 0.25, "header": "X-A: b"}
    again = tuned(double, tmp_path / "b", client_args=settings)
    assert double.bodies[-1] == sent
    assert again.trials.records[0].key == once.trials.records[0].key


def test_temperatures_can_be_swept(double, tmp_path):
    found = tuned(double, tmp_path, client_args={"temperature": [0, 0.7]})
    assert [one.config.client_args["temperature"] for one in found.trials] == [0.0, 0.7]
    assert {body["temperature"] for body in double.bodies} == {0.0, 0.7}


def test_a_key_goes_with_every_request_and_into_no_file(double, tmp_path, monkeypatch):
    monkeypatch.setenv("TENANT_KEY", KEY)
    found = tuned(double, tmp_path, api_key_env="TENANT_KEY", header="X-Tenant: blue")
    assert found.status == 0, found.trials.records[0].failure
    named = [headers for path, headers in double.heads if path in ("/v1/completions", "/version")]
    assert named
    assert all(headers["Authorization"] == f"Bearer {KEY}" for headers in named)
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or KEY not in path.read_text("utf-8", "replace"), path


@pytest.mark.parametrize("double", ["tls"], indirect=True)
def test_a_server_over_tls_is_trusted_by_its_certificate(double, tmp_path):
    found = tuned(double, tmp_path / "new", cafile=double.cafile)
    assert found.status == 0, found.trials.records[0].failure
    assert len(double.bodies) == LOAD["requests"]
    with pytest.raises(InputError, match="no certificates at"):
        tuned(double, tmp_path / "other", cafile=tmp_path / "none.pem")


def test_a_trial_has_as_many_sender_processes_as_it_is_told(double, tmp_path):
    load = {"concurrency": 4, "requests": 8}
    found = tuned(double, tmp_path / "a", **load, processes=2)
    assert found.trials.records[0].results.instrument["process_count"] == 2
    with pytest.raises(InputError, match="--processes many is no number of processes"):
        tuned(double, tmp_path / "b", processes="many")


def test_trace_headers_are_of_one_run_in_each_trial(double, tmp_path):
    tuned(double, tmp_path, trace_headers=True, client_args={"seed": [1, 2]})
    parents = [headers["traceparent"] for path, headers in double.heads if "traceparent" in headers]
    assert len(parents) == len(set(parents)) == 2 * LOAD["requests"]


def test_the_headers_of_a_study_are_the_ids_of_its_spans(double, tmp_path):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    collector = Collector()
    with collecting(collector) as url:
        tuned(double, tmp_path, otel_endpoint=url, client_args={"seed": [1, 2]})
    parents = [headers["traceparent"] for path, headers in double.heads if "traceparent" in headers]
    spans = {
        f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01"
        for span in collector.spans
        if span.name not in ("server", "trial")
    }
    assert set(parents) == spans
    assert len(spans) == 2 * LOAD["requests"]


@pytest.mark.parametrize(
    "options",
    [{"api_key_env": "HOME"}, {"cafile": "x.pem"}, {"trace_headers": True}, {"processes": "2"}],
)
def test_a_simulated_study_refuses_what_only_requests_have(options):
    with pytest.raises(InputError, match="is for requests to a server, and a simulation sends"):
        st.tune("Qwen/Qwen3-4B", engine="simulated", gpu="L4", dry_run=True, **options)


def test_certificates_are_refused_for_servers_that_are_started(tmp_path):
    with pytest.raises(InputError, match="--cafile is for servers over https"):
        st.tune("Qwen/Qwen3-4B", engine="vllm", gpu="L4", dry_run=True, cafile="x.pem")


def test_bench_repeats_what_a_trial_sent(double, tmp_path):
    found = tuned(double, tmp_path, temperature=0.5, header="X-A: b")
    double.bodies.clear()
    double.heads.clear()
    benched = st.bench(
        f"http://127.0.0.1:{double.server_address[1]}", against=found.artifacts.journal
    )
    assert {body["temperature"] for body in double.bodies} == {0.5}
    assert all(head["X-A"] == "b" for path, head in double.heads if path == "/v1/completions")
    asked = benched.record.config.client_args
    assert (asked["temperature"], asked["header"]) == (0.5, "X-A: b")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"header": "Authorization: Bearer tiger"}, "the value of Authorization is a secret"),
        ({"header": "X-Api-Key: tiger"}, "the value of X-Api-Key is a secret"),
        ({"header": "Host: x"}, "the load client sets Host itself"),
        ({"header": "no header"}, "is no header"),
        ({"client_args": {"header": "X-Api-Key: tiger"}}, "the value of X-Api-Key is a secret"),
        ({"header": "X-A: $NOBODY_HAS_SET_THIS"}, "NOBODY_HAS_SET_THIS holds no usable key"),
        ({"api_key_env": "NOBODY_HAS_SET_THIS"}, "NOBODY_HAS_SET_THIS holds no usable key"),
        ({"temperature": 1.0, "client_args": {"temperature": 0}}, "are the same"),
        ({"min_tokens": True, "stop_at_eos": True}, "--stop-at-eos and --min-tokens contradict"),
        ({"temperature": -1.0}, "temperature"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_anything_is_written(double, tmp_path, options, says):
    with pytest.raises(InputError, match=says) as refusal:
        tuned(double, tmp_path / "new", **options)
    assert "tiger" not in str(refusal.value) + refusal.value.hint
    assert not (tmp_path / "new").exists()
    assert not double.bodies


def test_a_trial_lasts_until_its_precision_and_its_record_says_what_was_reached(double, tmp_path):
    options = {"until": "request_throughput±90%", "requests": 110, "concurrency": 4}
    [record] = tuned(double, tmp_path, **options).trials
    until = record.results.until
    assert (until.label, until.reached) == ("request_throughput±90%", True)
    assert until.relative_half_width <= 0.9


@pytest.mark.parametrize(("rate", "saturated"), [(2.0, False), (20.0, True)])
def test_an_open_loop_says_whether_the_server_followed_and_a_closed_one_does_not(
    tmp_path, rate, saturated
):
    options = {"engine": "simulated", "gpu": "L4", "input_tokens": 64, "output_tokens": 16}
    options |= {"requests": 200, "server_args": "max_num_seqs=4", "output_dir": tmp_path}
    [trial] = st.tune("Qwen/Qwen3-4B", rate=rate, **options).trials
    assert trial.results.saturation.saturated is saturated
    if not saturated:
        options["output_dir"] = tmp_path / "closed"
        [trial] = st.tune("Qwen/Qwen3-4B", concurrency=4, **options).trials
        assert "saturation" not in trial.results


@pytest.mark.parametrize("name", ["temperature", "min_tokens", "header"])
def test_a_simulation_says_what_changes_nothing_in_virtual_time(name, caplog):
    values = {"temperature": 0.5, "min_tokens": True, "header": "X-A: b"}
    found = st.simulate(
        "Qwen/Qwen3-4B", gpu="L4", concurrency=2, requests=5, **{name: values[name]}
    )
    assert f"--{name.replace('_', '-')}" in caplog.text
    assert found.record.config.client_args[name] == values[name]
    caplog.clear()
    st.tune("Qwen/Qwen3-4B", engine="simulated", gpu="L4", dry_run=True, **{name: values[name]})
    assert f"--{name.replace('_', '-')}" in caplog.text


NINE = {"temperature": [round(0.1 * number, 1) for number in range(9)]}


@pytest.mark.slow
def test_a_reference_trial_that_runs_slower_at_the_end_is_noted_and_keeps_its_first_results(
    double, tmp_path
):
    """The server grows slow before the last two of nine trials; the first one shows it."""
    double.slow_after = 7 * LOAD["requests"]
    found = tuned(double, tmp_path, client_args=NINE)
    assert len(double.bodies) == 10 * LOAD["requests"]
    prompts = [body["prompt"] for body in double.bodies]
    assert prompts[0] != prompts[9 * LOAD["requests"]], "the server may have kept the first prompt"
    lines = read_journal(found.artifacts.journal)
    noted = lines[-1]
    assert len(lines) == 10
    first = next(line for line in lines if line.key == noted.key)
    note = noted.results["measured_again"]
    assert note["drifted"]
    assert note["changes"]["output_throughput"]["first"] == first.results.output_throughput
    assert note["changes"]["output_throughput"]["again"] < 0.5 * first.results.output_throughput
    assert noted.results.output_throughput == first.results.output_throughput
    assert len(found.trials) == 9
    assert "output throughput of the reference trial fell by " in str(found.search)
    assert f"between trial {note['between'][0]} and trial 9" in found.search.drift
    resumed = tuned(double, tmp_path, client_args=NINE, resume=True)
    assert len(double.bodies) == 10 * LOAD["requests"]
    assert resumed.search == found.search


@pytest.mark.slow
def test_few_trials_are_not_repeated_nor_any_where_that_is_not_wanted(double, tmp_path):
    few = {"temperature": NINE["temperature"][:8]}
    tuned(double, tmp_path / "few", client_args=few)
    tuned(double, tmp_path / "off", client_args=NINE, drift_check=False)
    assert len(double.bodies) == (8 + 9) * LOAD["requests"]
