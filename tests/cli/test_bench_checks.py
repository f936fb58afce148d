"""What is refused before any load: one clear line, and what to do."""

import json

import pytest
from click.testing import CliRunner

from servetune.cli.main import cli
from servetune.errors import InputError, LoadError, ServetuneError

NOWHERE = "http://127.0.0.1:9"


def refusal(*options, url=NOWHERE, kind=InputError):
    """The error that these options end in; nothing may have been asked of any server."""
    named = [] if "--model" in options else ["--model", "m"]
    run = CliRunner().invoke(cli, ["bench", *url.split(), *named, *options], standalone_mode=False)
    assert isinstance(run.exception, ServetuneError), (run.exception, run.output)
    assert isinstance(run.exception, kind), repr(run.exception)
    assert "\n" not in run.exception.message
    assert run.output == ""
    return run.exception


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--turn-tokens 64", "--turn-tokens has no meaning without --turns"),
        ("--prefixes 4", "--prefixes has no meaning without --shared-prefix"),
        ("--time-scale 2", "--time-scale has no meaning without --trace"),
        ("--prompt-column q", "--prompt-column has no meaning without --dataset"),
        ("--output-column q", "--output-column has no meaning without --dataset"),
        ("--grace 3", "--grace has no meaning without --duration or --until"),
        ("--keep-saturated -c 4", "--keep-saturated has no meaning without --rate"),
        ("--routing least_outstanding", "--routing needs several servers"),
        ("--dcgm http://127.0.0.1:9/m --scrape-every 0", "--dcgm needs --scrape-every above 0"),
        ("--stop-at-eos --min-tokens", "--stop-at-eos and --min-tokens contradict"),
        ("--stop-at-eos --strict-length", "--stop-at-eos and --strict-length contradict"),
        ("--think-time 1 --rate 3", "wait for no answer"),
        ("--turns 3 --api completions", "--api completions does not carry"),
        ("--api embeddings --output-tokens 4", "embeddings have no output tokens"),
    ],
)
def test_options_that_speak_of_what_is_not_there(options, words):
    error = refusal(*options.split())
    assert words in error.message


@pytest.mark.parametrize(
    "other",
    [
        "--workload default",
        "--dataset d.jsonl",
        "--input-tokens 4",
        "--output-tokens 4",
        "--turns 3",
        "--think-time 1",
        "--shared-prefix 10",
        "--lora a",
        "--rate 3",
        "--arrivals poisson",
    ],
)
def test_a_trace_says_itself_what_is_asked_and_when(other):
    error = refusal("--trace", "t.jsonl", *other.split())
    assert f"--trace and {other.split()[0]} contradict each other" in error.message
    assert "--time-scale" in error.hint


@pytest.mark.parametrize(
    "other",
    [
        "--dataset d.jsonl",
        "--input-tokens 4",
        "--output-tokens 4",
        "--turns 3",
        "--shared-prefix 9",
    ],
)
def test_a_workload_says_itself_what_is_asked(other):
    error = refusal("--workload", "default", *other.split())
    assert f"--workload and {other.split()[0]} contradict each other" in error.message


@pytest.mark.parametrize("other", ["--input-tokens 4", "--turns 3", "--shared-prefix 9"])
def test_a_data_set_has_its_own_prompts(other):
    error = refusal("--dataset", "d.jsonl", *other.split())
    assert f"--dataset and {other.split()[0]} contradict each other" in error.message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--no-stream", "--constraints", "ttft:p99<=1s"), "there is no ttft for --constraints"),
        (("--no-stream", "--slo", "itl<1s"), "there is no itl for --slo"),
        (("--no-stream", "--until", "tpot:p99±5%"), "there is no tpot for --until"),
        (("--api", "embeddings", "--constraints", "ttft<1s"), "embeddings come whole"),
        (("--slo", "output_throughput>5"), "--slo judges single requests"),
        (("--until", "goodput±5%"), "unknown metric 'goodput'"),
        (("--until", "ttft 5%"), "cannot read 'ttft 5%'"),
        (("--until", "output_throughput:p99±5%"), "no statistic 'p99'"),
    ],
)
def test_limits_on_what_cannot_be_measured(options, words):
    assert words in refusal(*options).message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--arrivals", "gamma"), "gamma arrivals need a rate"),
        (("--arrivals", "sine", "--rate", "3"), "sine arrivals need more than a name"),
        (("--arrivals", "gama", "--rate", "3"), "unknown kind of arrivals 'gama'"),
        (("--arrivals", "kind=gamma,burstiness=2"), "needs rate_per_s"),
        (
            ("--arrivals", "kind=poisson,rate_per_s=5", "--rate", "3"),
            "the rate of 3 requests/s contradicts the arrivals",
        ),
        (
            ("--arrivals", "kind=mmpp,rates_per_s=[2,40],dwell_s=[30,5]", "--rate", "3"),
            "the rate of 3 requests/s contradicts the arrivals",
        ),
        (
            ("--arrivals", "kind=all_at_once", "--rate", "3"),
            "the rate of 3 requests/s contradicts the arrivals",
        ),
    ],
)
def test_arrivals_that_are_not_one_law(options, words):
    assert words in refusal(*options).message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--processes", "0"), "is no number of processes"),
        (("--processes", "many"), "is no number of processes"),
        (("--input-tokens", "-4"), "1 token or more"),
        (("--input-tokens", "some"), "not a number"),
        (("--lora", "=3"), "cannot read the adapter '=3'"),
        (("--lora", "a=x"), "cannot read the adapter 'a=x'"),
        (("--lora", "a=0"), "must be positive"),
        (("--shared-prefix", "550"), "no room for a shared prefix of 550"),
        (("--workload", "nope"), "unknown workload 'nope'"),
        (("--workload", "nope.toml"), "cannot read the workload nope.toml"),
        (("--tokenizer", "/nowhere/at/all"), "/nowhere/at/all"),
        (("--dataset", "/nowhere.jsonl"), "cannot read the data set /nowhere.jsonl"),
        (("--trace", "/nowhere.jsonl"), "cannot read the trace /nowhere.jsonl"),
        (("--extra-body", "{bad", "--dry-run"), "extra_body is not a JSON object"),
        (("--cafile", "/nowhere.pem"), "no certificates at /nowhere.pem"),
        (("--otel", "nonsense"), "is not where spans can be sent"),
        (("--api-key-env", "SERVETUNE_NO_SUCH_KEY"), "SERVETUNE_NO_SUCH_KEY holds no usable"),
        (("--constraints", "nope<3"), "unknown metric 'nope'"),
    ],
)
def test_values_that_mean_nothing(options, words, monkeypatch):
    monkeypatch.delenv("SERVETUNE_NO_SUCH_KEY", raising=False)
    assert words in refusal(*options).message


@pytest.mark.parametrize(
    "options", [("--rate", "-3"), ("--rate", "0"), ("-c", "0"), ("-n", "0"), ("--duration", "-1")]
)
def test_numbers_out_of_range_are_the_parsers_business(options):
    run = CliRunner().invoke(cli, ["bench", NOWHERE, *options])
    assert run.exit_code == 2
    assert "is not in the range" in run.output


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("d.jsonl", '{"prompt": "a b", "output_tokens": 4}\n{bad\n', "line 2"),
        ("t.jsonl", '{"timestamp": 0, "input_length": 5, "output_length": 2}\n{bad\n', "line 2"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_its_line(tmp_path, name, text, line):
    path = tmp_path / name
    path.write_text(text)
    option = "--trace" if name.startswith("t") else "--dataset"
    error = refusal(option, str(path))
    assert line in error.message
    assert name in error.message


def test_a_server_that_is_not_there():
    run = CliRunner().invoke(cli, ["bench", NOWHERE], standalone_mode=False)
    assert isinstance(run.exception, LoadError)
    assert run.exception.exit_code == 3
    assert NOWHERE in run.exception.message
    assert "is the server running" in run.exception.hint


def test_a_model_that_is_not_there_in_the_servers_words(fake):
    server = fake()
    error = refusal("--model", "other", "-n", "2", url=server.url, kind=LoadError)
    assert "The model `other` does not exist" in error.message
    assert "/v1/models" in error.hint
    assert not any(truth.sent_s for truth in server.truths)


def test_prompts_that_are_longer_than_the_context_in_the_servers_words(fake):
    server = fake(max_model_len=100)
    error = refusal("--model", "fake", "--input-tokens", "200", url=server.url, kind=LoadError)
    assert "maximum context length is 100 tokens" in error.message
    assert "shorter prompts" in error.hint


def test_the_longest_prompt_counts_where_the_server_says_its_context(monkeypatch):
    """The first prompt alone would have been short enough."""
    models = {"data": [{"id": "fake", "max_model_len": 600}]}
    monkeypatch.setattr(
        "servetune.api.bench_setup.fetch_blocking", lambda *_, **__: json.dumps(models)
    )
    error = refusal("--model", "fake", "--input-tokens", "uniform:min=10,max=900", "-n", "50")
    assert "fake takes 600" in error.message


def test_what_was_left_behind_is_not_overwritten(tmp_path):
    (tmp_path / "bench.jsonl").write_text("{}\n")
    assert "exists already" in refusal("--out", str(tmp_path), kind=ServetuneError).message
    assert (tmp_path / "bench.jsonl").read_text() == "{}\n"
    file = tmp_path / "file"
    file.write_text("")
    assert "is not a folder" in refusal("--out", str(file), kind=ServetuneError).message
