"""Spans of studies, as a collector on loopback gets them."""

import shlex
import sys

import pytest
from collector import Collector, collecting, plain

import servetune as st
from servetune.errors import InputError

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel is missing")


def tune(tmp_path, url, behaviour, **options):
    program = f"{shlex.quote(sys.executable)} -m servetune.testing.fake_server --port {{port}}"
    return st.tune(
        "fake", engine="command", server_cmd=f"{program} {behaviour}", gpu="L4",
        input_tokens=8, output_tokens=3, requests=4, retries=0, otel_endpoint=url,
        output_json=tmp_path / "q.json", **options,
    )  # fmt: skip


def test_a_server_is_the_parent_of_its_trials_and_these_of_their_requests(tmp_path):
    collector = Collector()
    with collecting(collector) as url:
        # The first trial sends four requests, and one to see that the server answers.
        found = tune(tmp_path, url, "--die-at-request 7", concurrency=[1, 2])
    ok, failed = found.trials
    assert (ok.status, failed.status) == ("ok", "failed")
    spans = {span.span_id: span for span in collector.spans}
    servers = [span for span in spans.values() if span.name == "server"]
    assert all(span.parent_span_id == b"" for span in servers)
    assert [event.name for event in servers[0].events] == ["ready"]
    assert servers[0].status.code == 2
    told = plain(servers[0].attributes)
    assert "fake_server" in told["servetune.server.command"]
    trials = {}
    for span in (each for each in spans.values() if each.name == "trial"):
        above = spans[span.parent_span_id]
        assert (above.name, above.trace_id) == ("server", span.trace_id)
        trials[plain(span.attributes)["servetune.trial.key"]] = span
    assert set(trials) == {ok.key, failed.key}
    told = plain(trials[ok.key].attributes)
    assert told["servetune.client.max_concurrency"] == 1
    assert told["servetune.result.completed"] == 4
    assert told["gen_ai.request.model"] == "fake"
    assert trials[ok.key].status.code == 0
    assert trials[failed.key].status.code == 2
    assert plain(trials[failed.key].attributes)["error.type"] == failed.failure.kind
    requests = [span for span in spans.values() if span.name not in ("server", "trial")]
    own = [each for each in requests if each.parent_span_id == trials[ok.key].span_id]
    assert len(own) == 4
    for span in own:
        assert span.trace_id == trials[ok.key].trace_id
        assert span.end_time_unix_nano <= trials[ok.key].end_time_unix_nano
    [run] = {
        plain(request.resource_spans[0].resource.attributes)["servetune.run_id"]
        for request in collector.requests
    }
    assert run == ok.provenance["run"]


def test_a_server_that_does_not_start_is_an_error_and_so_is_its_trial(tmp_path):
    collector = Collector()
    with collecting(collector) as url:
        [trial] = tune(tmp_path, url, "--no-such-option", concurrency=2).trials
    server, span = sorted(collector.spans, key=lambda span: span.name)
    assert (server.name, server.status.code, len(server.events)) == ("server", 2, 0)
    assert (span.name, span.status.code) == ("trial", 2)
    assert span.status.message == trial.failure.reason
    assert span.parent_span_id == server.span_id


def test_a_collector_that_refuses_costs_a_study_one_note(server, tmp_path, caplog):
    collector = Collector(status=400)
    with collecting(collector) as url:
        found = st.tune(
            "fake", engine="external", url=server.url, gpu="L4", concurrency=[1, 2],
            input_tokens=8, output_tokens=3, requests=4, otel_endpoint=url,
            output_json=tmp_path / "q.json",
        )  # fmt: skip
    assert [record.status for record in found.trials] == ["ok", "ok"]
    assert len(collector.requests) == 1
    assert caplog.text.count("the collector at") == 1


def test_simulated_trials_have_no_spans(tmp_path):
    with pytest.raises(InputError, match="--otel is for requests to a server"):
        st.tune(
            "Qwen/Qwen3-4B", engine="simulated", gpu="L4", otel_endpoint="http://127.0.0.1:9",
            output_json=tmp_path / "q.json",
        )  # fmt: skip
