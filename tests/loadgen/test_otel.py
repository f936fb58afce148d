import random
import re
from array import array

import pytest
from collector import Collector, collecting, plain

from servetune.errors import InputError, LoadError
from servetune.loadgen import otel
from servetune.loadgen.otel import (
    SentRequests,
    export_spans,
    otlp_endpoint,
    request_spans,
    require_otel,
)
from servetune.loadgen.otel_metrics import (
    SECONDS,
    TOKENS,
    export_metrics,
    metrics_of,
    otlp_metrics_endpoint,
)
from servetune.loadgen.target import Target
from servetune.metrics.record import Record
from servetune.traffic.messages import trace_ids, traceparent

TARGET = Target(base_url="http://models.example:8000/v1", model="tiny")
STARTED_S = 1_790_000_000.25
SENT = SentRequests(run_id="run", started_unix_s=STARTED_S, targets=(TARGET,))

RECORDS = (
    Record(
        index=0,
        input_tokens=12,
        output_tokens=3,
        due_s=0.5,
        sent_s=0.625,
        end_s=2.0,
        chunk_times_s=array("d", [1.0, 1.5, 1.75]),
        status=200,
        connect_s=0.01,
        session=4,
        turn=1,
        model="adapter",
    ),
    Record(
        index=1,
        input_tokens=12,
        output_tokens=0,
        due_s=1.0,
        sent_s=1.0,
        end_s=1.25,
        outcome="http_status",
        status=503,
        detail="too busy",
    ),
    Record(
        index=2,
        input_tokens=12,
        output_tokens=0,
        due_s=1.0,
        sent_s=1.0,
        end_s=9.0,
        outcome="timeout",
    ),
)


class TestTraceparent:
    def test_it_has_the_form_of_the_w3c(self):
        for index in range(200):
            header = traceparent("run", index)
            assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", header)
            trace_id, span_id = (int(part, 16) for part in header.split("-")[1:3])
            assert (trace_id, span_id) == trace_ids("run", index)
            assert trace_id > 0
            assert span_id > 0

    def test_requests_and_runs_never_share_one(self):
        headers = {traceparent(run, index) for run in ("a", "b") for index in range(5_000)}
        assert len({header.split("-")[1] for header in headers}) == 10_000
        assert traceparent("a", 7) == traceparent("a", 7)

    def test_requests_of_a_given_trace_share_it_alone(self):
        headers = [traceparent("a", index, "ab" * 16) for index in range(100)]
        assert {header.split("-")[1] for header in headers} == {"ab" * 16}
        assert len({header.split("-")[2] for header in headers}) == 100


class TestEndpoint:
    @pytest.fixture(autouse=True)
    def _no_environment(self, monkeypatch):
        for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
            monkeypatch.delenv(name, raising=False)

    def test_nobody_asked_for_spans(self):
        assert otlp_endpoint() is None

    def test_a_collector_gets_its_route(self):
        assert otlp_endpoint("http://c:4318") == "http://c:4318/v1/traces"
        assert otlp_endpoint("http://c:4318/") == "http://c:4318/v1/traces"
        assert otlp_endpoint("https://c/api/otel/spans") == "https://c/api/otel/spans"

    def test_the_environment_is_heard_as_open_telemetry_says(self, monkeypatch):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/base")
        assert otlp_endpoint() == "http://c:4318/base/v1/traces"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:4318/mine")
        assert otlp_endpoint() == "http://t:4318/mine"
        assert otlp_endpoint("http://x:1") == "http://x:1/v1/traces"

    @pytest.mark.parametrize("wrong", ["localhost:4317", "grpc://c:4317", "http://"])
    def test_what_is_no_address_is_refused(self, wrong):
        with pytest.raises(InputError, match="not where spans"):
            otlp_endpoint(wrong)


def test_a_missing_sdk_is_reported_with_the_way_to_it(monkeypatch):
    monkeypatch.setattr(otel.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError) as told:
        require_otel()
    assert "servetune[otel]" in told.value.hint


class TestExport:
    @pytest.fixture(autouse=True)
    def _sdk(self):
        pytest.importorskip(
            "opentelemetry.exporter.otlp.proto.http",
            reason="OpenTelemetry's SDK is an extra: pip install 'servetune[otel]'",
        )

    def export(self, records, url):
        spans = request_spans(records, SENT)
        return export_spans(spans, endpoint=otlp_endpoint(url), run_id="run")

    def test_each_request_is_the_span_that_its_header_named(self):
        collector = Collector()
        with collecting(collector) as url:
            assert self.export(RECORDS, url) == 3
        for record, span in zip(RECORDS, collector.spans, strict=True):
            header = f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01"
            assert header == traceparent("run", record.index)
            assert span.parent_span_id == b""
        resource = plain(collector.requests[0].resource_spans[0].resource.attributes)
        assert resource["servetune.run_id"] == "run"
        assert resource["service.name"] == "servetune"

    def test_a_span_has_the_requests_times_and_names(self):
        collector = Collector()
        with collecting(collector) as url:
            self.export(RECORDS, url)
        first, refused, late = collector.spans
        base_ns = 1_790_000_000_250_000_000
        assert first.name == "chat adapter"
        assert first.kind == 3  # client
        assert first.start_time_unix_nano == base_ns + 500_000_000
        assert first.end_time_unix_nano == base_ns + 2_000_000_000
        assert {event.name: event.time_unix_nano - base_ns for event in first.events} == {
            "sent": 625_000_000,
            "first_token": 1_000_000_000,
            "last_token": 1_750_000_000,
        }
        told = plain(first.attributes)
        assert told["gen_ai.operation.name"] == "chat"
        assert told["gen_ai.provider.name"] == "openai"
        assert told["gen_ai.request.model"] == "adapter"
        assert told["gen_ai.usage.input_tokens"] == 12
        assert told["gen_ai.usage.output_tokens"] == 3
        assert told["gen_ai.response.time_to_first_chunk"] == 0.375  # from sent
        assert told["servetune.ttft_s"] == 0.5  # from due
        assert told["gen_ai.conversation.id"] == "4"
        assert (told["server.address"], told["server.port"]) == ("models.example", 8000)
        assert "error.type" not in told
        assert first.status.code == 0
        assert plain(refused.attributes)["error.type"] == "503"
        assert (refused.status.code, refused.status.message) == (2, "too busy")
        assert plain(late.attributes)["error.type"] == "timeout"
        assert [event.name for event in late.events] == ["sent"]

    def test_many_go_in_batches(self):
        collector = Collector()
        records = [
            Record(index=i, input_tokens=1, output_tokens=0, due_s=i, sent_s=i, end_s=i + 1)
            for i in range(1_200)
        ]
        with collecting(collector) as url:
            assert self.export(records, url) == 1_200
        assert len(collector.requests) == 3
        assert len({span.trace_id for span in collector.spans}) == 1_200

    def test_a_collector_that_refuses_is_reported(self):
        with (
            collecting(Collector(status=400)) as url,
            pytest.raises(LoadError, match="took 0 of 3"),
        ):
            self.export(RECORDS, url)

    def test_histograms_have_the_conventions_names_units_and_attributes(self):
        collector = Collector()
        with collecting(collector) as url:
            endpoint = otlp_metrics_endpoint(otlp_endpoint(url))
            series = export_metrics(RECORDS, SENT, endpoint=endpoint)
        [of_resource] = collector.metrics[0].resource_metrics
        assert plain(of_resource.resource.attributes)["servetune.run_id"] == "run"
        metrics = {each.name: each for each in of_resource.scope_metrics[0].metrics}
        assert {name: each.unit for name, each in metrics.items()} == {
            "gen_ai.client.operation.duration": "s",
            "gen_ai.client.token.usage": "{token}",
            "gen_ai.client.operation.time_to_first_chunk": "s",
            "gen_ai.client.operation.time_per_output_chunk": "s",
        }
        assert series == 3 + 2 + 1 + 1
        durations = metrics["gen_ai.client.operation.duration"].histogram.data_points
        errors = {plain(point.attributes).get("error.type"): point for point in durations}
        assert set(errors) == {None, "503", "timeout"}
        assert (errors["timeout"].sum, errors["timeout"].max) == (8.0, 8.0)
        [first] = metrics["gen_ai.client.operation.time_to_first_chunk"].histogram.data_points
        assert first.sum == 0.375
        assert plain(first.attributes) == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": "adapter",
            "server.address": "models.example",
            "server.port": 8000,
        }
        [gaps] = metrics["gen_ai.client.operation.time_per_output_chunk"].histogram.data_points
        assert (gaps.count, gaps.sum) == (2, 0.75)
        usage = metrics["gen_ai.client.token.usage"].histogram.data_points
        assert {plain(p.attributes)["gen_ai.token.type"]: p.sum for p in usage} == {
            "input": 12.0,
            "output": 3.0,
        }

    def test_buckets_are_counted_as_the_sdk_counts_them(self):
        """The SDK's own histograms, fed one by one, are the reference."""
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader

        chance = random.Random(3)
        ends = [*SECONDS, *(chance.lognormvariate(0, 2) for _ in range(300))]
        records = [
            Record(
                index=i, input_tokens=4 ** (i % 9), output_tokens=0, due_s=0, sent_s=0, end_s=end
            )
            for i, end in enumerate(ends)
        ]
        reader = InMemoryMetricReader()
        meter = MeterProvider([reader], shutdown_on_exit=False).get_meter("reference")
        duration = meter.create_histogram("d", explicit_bucket_boundaries_advisory=list(SECONDS))
        usage = meter.create_histogram("u", explicit_bucket_boundaries_advisory=list(TOKENS))
        for record in records:
            duration.record(record.end_s)
            usage.record(record.input_tokens)

        def counts(data, name):
            [scope] = data.resource_metrics[0].scope_metrics
            [metric] = [each for each in scope.metrics if each.name == name]
            point = metric.data.data_points[0]
            return list(point.bucket_counts), point.count, pytest.approx(point.sum)

        ours = metrics_of(records, SENT)
        theirs = reader.get_metrics_data()
        assert counts(ours, "gen_ai.client.operation.duration") == counts(theirs, "d")
        assert counts(ours, "gen_ai.client.token.usage") == counts(theirs, "u")

    def test_an_endpoint_of_its_own_for_spans_gets_no_metrics(self):
        assert otlp_metrics_endpoint("http://c:4318/v1/traces") == "http://c:4318/v1/metrics"
        assert otlp_metrics_endpoint("http://c/api/spans") is None

    @pytest.mark.parametrize("status", [400, 200])
    def test_a_collector_that_refuses_costs_a_bench_one_note(self, status, caplog):
        from types import SimpleNamespace

        from servetune.api.telemetry import export_run

        request = SimpleNamespace(
            settings=SimpleNamespace(run_id="run"),
            targets=[TARGET],
            workload=SimpleNamespace(api="chat"),
        )
        result = SimpleNamespace(records=RECORDS, started_unix_s=STARTED_S)
        with collecting(Collector(status)) as url, caplog.at_level("INFO", logger="servetune"):
            export_run(url, request, result)
        notes = [each for each in caplog.records if each.levelname == "WARNING"]
        assert [each.name for each in notes] == ["servetune"] * (status == 400)
