"""Anything as the value of any option, anything in any file: a result or one error, no traceback.

The options are those of every command, read off it, so that a new one is tried without being
listed. Nothing is launched or sent: every command plans only, or fails before. `make test-night`
tries a hundred times as many.
"""

import contextlib
import io
import json
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servetune.cli.main import VERBS, cli
from servetune.errors import ServetuneError
from servetune.store import read_journal

#: Texts that were meant for something else, or for nothing.
ODD = [
    "", " ", "-", "--", "0", "-1", "1e308", "1e-308", "9" * 400, "nan", "inf", "-inf", "1,2,,3",
    "[]", "[1", "range(0,10^20)", "range(1,2,0)", "a=[1,2];;b", "a=b;a=c", "{}", '{"a":', "null",
    "http://[::1", "http://127.0.0.1:99999", "file:///etc/passwd", "/dev/null", "/", ".", "..",
    "a\x00b", "é漢字", "\x1b]52;c;x\x07", "\u202e", "%s%n", "${HOME}", "$(id)", "'; id; '", "=1+1",
    "ttft<=", "ttft<=1ms;;", "p99<1", "e2e_latency:p999<1s", "1h1", "-5m", "0s", "1e400",
    "Qwen/Qwen3-4B", "L4", "../../x", "a" * 5000, "1-", "4-1", "True", "none", "auto", "0.5.5",
]  # fmt: skip

value = st.one_of(
    st.sampled_from(ODD),
    st.text(max_size=12),
    st.integers(-3, 40).map(str),  # larger ones may be meant, and take their time
    st.floats(-2, 40).map(str),
)

#: Commands as far as they plan only: words that make the rest of the command line sound.
PLANS = {
    "estimate": ["--model", "Qwen/Qwen3-4B", "--gpu", "L4"],
    "simulate": ["--model", "Qwen/Qwen3-4B", "--gpu", "L4", "-n", "3", "-c", "1"],
    "tune": ["--engine", "simulated", "--model", "Qwen/Qwen3-4B", "--gpu", "L4", "-n", "2",
             "--dry-run"],
    "bench": ["http://127.0.0.1:9", "--model", "m", "-n", "3", "--dry-run"],
    "recommend": ["q.jsonl"],
    "report": ["q.jsonl", "--force"],
    "calibrate": ["q.jsonl"],
    "doctor": [],
    "runs list": [],
    "runs deployments": [],
    "workloads list": [],
    "workloads show": ["multi_turn_chat"],
    **{
        f"deploy {target}": ["q.jsonl", "--dry-run"]
        for target in ("command", "systemd", "compose", "kubernetes", "kserve", "bentoml")
    },
    "deploy sagemaker": ["q.jsonl", "--instance", "ml.g6.12xlarge", "--dry-run"],
}  # fmt: skip
#: Options that would reach out, wait, or write where they are told to.
LEFT_OUT = {
    "serve", "cluster", "job", "url", "sagemaker", "via_aws_job", "recommendations", "against",
    "write_config", "output_json", "output_dir", "out", "otel_endpoint", "dcgm_url", "plot", "save",
    "mlflow",
    "job_folder", "aws_profile", "executable", "launcher", "ready_timeout_s", "dry_run", "help",
    "trace_headers", "profile", "endpoint", "region", "ask_aws", "name", "html",
}  # fmt: skip


def options_of(verb):
    command: click.Command | None = cli
    for word in verb.split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    assert command is not None
    return [
        each
        for each in command.params
        if isinstance(each, click.Option) and each.name not in LEFT_OUT and not each.is_flag
    ]


def cases():
    return [(verb, option) for verb in PLANS for option in options_of(verb)]


RECORD = {
    "config": {"client_args": {"max_concurrency": 4}, "server_args": {"max_num_seqs": 8}},
    "results": {"output_throughput": 100.0, "mean_ttft_ms": 5.0, "completed": 9, "failed": 0},
    "metadata": {"gpu_type": "L4", "gpu_count": 1, "model_tag": "Qwen/Qwen3-4B"},
    "constraints": [],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("fuzz")
    (place / "q.jsonl").write_text(json.dumps(RECORD) + "\n")
    before = Path.cwd()
    os.chdir(place)
    patch = pytest.MonkeyPatch()
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        patch.setenv(name, str(place))
    patch.setenv("SERVETUNE_HOME", str(place / "home"))
    yield place
    patch.undo()
    os.chdir(before)


def outcome(words):
    """Outcome of a command line: its exit status; a traceback raises."""
    with contextlib.redirect_stderr(io.StringIO()):
        done = CliRunner().invoke(cli, words, standalone_mode=False)
    error = done.exception
    if error is None:
        return done.return_value
    if isinstance(error, ServetuneError):
        assert error.message
        assert "\n" not in error.message.strip() or len(error.message) < 2000
        return int(error.exit_code)
    if isinstance(error, click.ClickException):
        return error.exit_code
    if isinstance(error, SystemExit | click.exceptions.Exit | OSError):
        return 2
    raise error


def tried(verb, option, text):
    name = max(option.opts, key=len)
    status = outcome([*verb.split(), *PLANS[verb], f"{name}={text}"])
    assert status in (None, 0, 1, 2, 3, 4), (verb, name, text)


QUICK = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, max_examples=6000, derandomize=False)


@pytest.mark.parametrize("verb", PLANS)
def test_any_value_of_any_option_is_used_or_refused(folder, verb):
    options = options_of(verb)
    assert options

    @QUICK
    @given(option=st.sampled_from(options), text=value)
    def check(option, text):
        tried(verb, option, text)

    check()


@pytest.mark.night
@pytest.mark.parametrize("verb", PLANS)
def test_any_value_of_any_option_is_used_or_refused_at_length(folder, verb):
    @LONG
    @given(option=st.sampled_from(options_of(verb)), text=value)
    def check(option, text):
        tried(verb, option, text)

    check()


json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def damaged(draw, sound):
    """A sound text with a part cut out, doubled, or replaced by something else."""
    text = sound if isinstance(sound, bytes) else sound.encode()
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(text)))
        end = draw(st.integers(begin, min(len(text), begin + 20)))
        put = draw(
            st.sampled_from([b"", b"\x00", b"\xff", b"1e999", b"[", b"}", b'"', b"null", b"-1"])
            | st.binary(max_size=4)
        )
        text = text[:begin] + put + text[end:]
    return text


CONFIG = json.dumps(
    {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 128,
        "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 32, "vocab_size": 4096,
        "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8", "bits": 8},
    }
)  # fmt: skip
BUNDLE = {
    "servetune_bundle": 1, "target": "compose", "name": "m", "image": "i:1", "files": [],
    "plan": {"model": "m", "engine": "vllm"}, "evidence": {"source": "q.jsonl, trial a"},
}  # fmt: skip
ENTRIES = (
    '{"entry":"run-began","at":"2026-11-24T08:00:00Z","schema":1,"run":"aa","path":"/q.jsonl"}\n'
    '{"entry":"deployment","at":"2026-11-24T09:00:00Z","schema":1,"place":{"target":"compose"},'
    '"action":"rendered","config":{"model":"m","adapters":[{"name":"fr","base":"m"}]}}\n'
)
#: Files that commands read: name, sound content, and the command line.
FILES = {
    "journal": ("f.jsonl", (json.dumps(RECORD) + "\n") * 2, ["recommend", "f.jsonl"]),
    "report": ("g.jsonl", json.dumps(RECORD) + "\n", ["report", "g.jsonl", "--force"]),
    "summary": ("f.json", json.dumps({"test_results": [RECORD], "metadata": {}}),
                ["recommend", "f.json"]),
    "model": ("m/config.json", CONFIG, ["estimate", "--model", "m", "--gpu", "L4", "-c", "2"]),
    "config": ("c.toml", '[simulate]\nmodel = "Qwen/Qwen3-4B"\ngpu = "L4"\nconcurrency = 2\n',
               ["simulate", "--config", "c.toml"]),
    "trace": ("t.csv", "due_s,input_tokens,output_tokens\n0,10,5\n1,20,6\n",
              ["simulate", *PLANS["simulate"][:4], "--trace", "t.csv"]),
    "requests": ("t.jsonl", '{"timestamp": 0, "input_length": 10, "output_length": 5}\n',
                 ["simulate", *PLANS["simulate"][:4], "--trace", "t.jsonl"]),
    "workload": ("w.toml", '[[part]]\ninput_tokens = "9"\noutput_tokens = 2\n',
                 ["simulate", *PLANS["simulate"], "--workload", "w.toml"]),
    "log": ("l.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            + "".join(f"2026-01-01 00:00:{s:02d}.0,{s + 9},5\n" for s in range(60)),
            ["workloads", "fit", "l.csv", "--out", "fitted.toml"]),
    "compared": ("k.jsonl", json.dumps(RECORD) + "\n", ["simulate", "--compare", "k.jsonl"]),
    "baseline": ("b.jsonl", json.dumps(RECORD) + "\n",
                 ["bench", *PLANS["bench"], "--against", "b.jsonl"]),
    "dataset": ("d.json", '[{"prompt": "one two", "completion": "three"}]',
                ["bench", *PLANS["bench"], "--dataset", "d.json", "--prompt-column", "prompt"]),
    "batch": ("rows.csv", "model,gpu,isl,osl,concurrency,tp\nQwen/Qwen3-4B,L4,100,20,4,1\n",
              ["estimate", "--batch", "rows.csv", "--out", "predicted.csv"]),
    "deployed": ("y.jsonl", json.dumps(RECORD) + "\n",
                 ["deploy", "compose", "y.jsonl", "--dry-run"]),
    "run": ("z/z.jsonl", json.dumps(RECORD) + "\n", ["runs", "rebuild", "z"]),
    "register": ("home/register.jsonl", ENTRIES, ["runs", "deployments"]),
    "bundle": ("e/plan.json", json.dumps(BUNDLE), ["register", "e"]),
    "calibration": ("l.jsonl", json.dumps(RECORD) + "\n", ["calibrate", "l.jsonl"]),
}  # fmt: skip


def read_anything(folder, kind, text):
    name, _, words = FILES[kind]
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text)
    assert outcome(words) in (None, 0, 1, 2, 3), (kind, text)


@pytest.mark.parametrize("kind", FILES)
def test_any_content_of_any_file_is_used_or_refused(folder, kind):
    @QUICK
    @given(text=damaged(FILES[kind][1]) | json_value.map(lambda v: json.dumps(v).encode()))
    def check(text):
        read_anything(folder, kind, text)

    check()


@pytest.mark.night
@pytest.mark.parametrize("kind", FILES)
def test_any_content_of_any_file_is_used_or_refused_at_length(folder, kind):
    @LONG
    @given(text=damaged(FILES[kind][1]) | json_value.map(lambda v: json.dumps(v).encode()))
    def check(text):
        read_anything(folder, kind, text)

    check()


def test_the_sound_files_and_command_lines_are_used(folder):
    for kind, (_, sound, words) in FILES.items():
        if kind == "calibration":  # it needs a measured trial; this one is refused
            continue
        (folder / FILES[kind][0]).parent.mkdir(exist_ok=True)
        (folder / FILES[kind][0]).write_text(sound)
        assert outcome(words) in (0, 1), kind
    for verb in PLANS.keys() - {"calibrate"}:
        assert outcome([*verb.split(), *PLANS[verb]]) in (0, 1, None), verb
    assert len(read_journal(folder / "q.jsonl")) == 1
    assert {verb.split()[0] for verb in PLANS} >= VERBS.keys() - {
        "stage",
        "completion",
        "ui",
        "register",
        "mcp",
        "fleet",  # simulates for seconds
        "compare",  # needs two runs; their files are read as "journal" is
    }
