"""Journals of others whose every field holds a credential: none reaches what is made of them."""

import json
import subprocess
import sys

import pytest
from planted import ENVIRONMENT, FORMATS, SECRET, leaks, texts

import servetune as st
from servetune.api.notes import note, progress
from servetune.errors import InputError, ServetuneError
from servetune.plan import Plan
from servetune.secret import REDACTED

LOAD = ("--model", "Qwen/Qwen3-4B", "--gpu", "L4", "-c", "2,4", "-n", "10")
SIMULATED = ("--engine", "simulated", *LOAD)
#: Of names that tell what their values are.
TELLING = {name: value for name, value in ENVIRONMENT.items() if "_" in name or name[:2] == "PG"}
SETTINGS = {"api_key": SECRET, "hf_token": SECRET}


@pytest.fixture
def ours(called, tmp_path):
    done = called("tune", *SIMULATED, "--output-json", "q.json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (tmp_path / "q.jsonl").read_text().splitlines()]


def planted(record):
    """The record with a credential in every field that has room for one."""
    told = texts()
    record["cmd"] = f"vllm serve m {' '.join(told)}"
    record["config"]["server_cmd_args"] = ["--api-key", SECRET, *told]
    record["metadata"] |= {"title": told[2], "tags": told[:3], "notes": "\n".join(told)}
    record["provenance"] |= {"env": TELLING, "texts": told, "note": "\n".join(told)}
    record["results"]["extra"] = told
    return record


def written(tmp_path, name, records):
    (tmp_path / name).write_text("".join(json.dumps(each) + "\n" for each in records))
    return name


def leaking(tmp_path, *done):
    """Names of the files that show a credential, and texts of the terminal."""
    files = (path for path in tmp_path.rglob("*") if path.is_file() and "theirs" not in path.name)
    shown = [path.name for path in files if leaks(path.read_text(errors="replace"))]
    return shown + [text for each in done for text in leaks(each.stdout + each.stderr)]


def test_reports_and_recommendations_of_a_journal_show_no_secret(called, tmp_path, ours):
    one, other = map(planted, ours)
    other["status"], other["key"] = "failed", 16 * "f"
    told = "\n".join(texts())
    other["failure"] = {"kind": "died", "reason": told, "log_tail": told}
    one["config"]["server_args"] |= SETTINGS
    one["plan"]["extra"] = [*SETTINGS.items(), ("chat_template", FORMATS[0])]
    journal = written(tmp_path, "theirs.jsonl", [one, other])
    report = called("report", journal, "--output-json", "r.json")
    assert report.returncode == 0, report.stderr
    done = [
        called("recommend", journal, "--json"),
        called("recommend", journal),
        called("tune", *SIMULATED, "--output-json", "c.json",
               "--compare", journal),
        called("deploy", "compose", journal, "--out", "b"),
    ]  # fmt: skip
    assert [each.returncode for each in done] == [0, 0, 0, 2]
    assert "setting 'api_key' is a credential" in done[-1].stderr
    assert leaking(tmp_path, report, *done) == []


@pytest.mark.parametrize(
    "document",
    [lambda records: {"test_results": records, "metadata": {"title": f"--api-key {SECRET}"}},
     lambda records: records,
     lambda records: records[0]],
    ids=["summary", "list", "record"],
)  # fmt: skip
def test_a_summary_of_others_shows_no_secret_in_any_form(called, tmp_path, ours, document):
    (tmp_path / "theirs.json").write_text(json.dumps(document(list(map(planted, ours)))))
    done = [
        called("report", "theirs.json", "--output-json", "r.json"),
        called("recommend", "theirs.json", "--json"),
        called("tune", *SIMULATED, "--output-json", "c.json", "--compare", "theirs.json"),
    ]
    assert [each.returncode for each in done] == [0, 0, 0], [each.stderr for each in done]
    assert leaking(tmp_path, *done) == []
    assert leaks(repr(st.read(tmp_path / "theirs.json"))) == []


@pytest.mark.parametrize("target", ["command", "compose", "kubernetes", "kserve", "bentoml"])
def test_a_bundle_shows_no_secret_of_the_trial_that_it_rests_on(called, tmp_path, ours, target):
    records = [planted(record) | {"simulated": False} for record in ours]
    for record in records:
        record["metadata"]["engine_version"] = "0.11.0"
    journal = written(tmp_path, "theirs.jsonl", records)
    preview = called("deploy", target, journal, "--out", "b", "--dry-run")
    made = called("deploy", target, journal, "--out", "b")
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "b" / "plan.json").exists()
    assert leaking(tmp_path, preview, made) == []


def test_what_was_taken_out_of_a_setting_is_not_deployed_as_if_it_were_one(called, tmp_path, ours):
    ours[0]["plan"]["extra"] = [("override_generation_config", f'{{"api_key": "{SECRET}"}}')]
    ours[0]["simulated"] = False
    journal = written(tmp_path, "theirs.jsonl", ours[:1])
    done = called("deploy", "compose", journal, "--out", "b")
    assert done.returncode == 2
    assert "'override_generation_config' is a credential" in done.stderr
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("kind", ["slurm", "kubernetes"])
@pytest.mark.parametrize(
    "words",
    [
        ("--server-args", f"hf_token={SECRET}"),
        ("--server-cmd", f"serve --auth-token {SECRET} --port {{port}}"),
        ("--extra-body", json.dumps({"api_key": SECRET})),
    ],
    ids=lambda words: words[0],
)
def test_a_job_whose_script_would_show_a_secret_is_refused(called, kind, words):
    job = ("--job", kind, "--job-image", "i", "--job-folder", "/shared/x")
    done = called("tune", *LOAD, *job, *words)
    assert done.returncode == 2
    assert "the text of the job would show a secret" in done.stderr
    assert leaks(done.stdout + done.stderr) == []


def test_what_is_printed_before_a_run_shows_no_secret(called, tmp_path):
    spelt = ";".join(f"{name}={value}" for name, value in SETTINGS.items())
    body = json.dumps({"api_key": SECRET, "user": "x"})
    command = f"env API_KEY='{SECRET} x' serve -H 'Authorization: Bearer {SECRET}' --port {{port}}"
    one = ("--model", "Qwen/Qwen3-4B", "--gpu", "L4", "-c", "2", "-n", "10")
    done = [
        called("bench", "http://127.0.0.1:9", "--model", "m", "--dry-run", "--extra-body", body,
               "--write-config", "w.toml"),
        called("tune", *LOAD, "--server-args", spelt, "--dry-run", "--write-config", "v.toml"),
        called("tune", *LOAD, "--server-cmd", command, "--server-args", "max_num_seqs=[4,8]",
               "--dry-run"),
        called("simulate", *one, "--server-args", spelt, "--allow-unknown", "--out", "o"),
        called("simulate", *one, "--server-args", spelt, "--allow-unknown", "--json"),
    ]  # fmt: skip
    assert [each.returncode for each in done] == [0] * 5, [each.stderr for each in done]
    assert '"user":"x"' in done[0].stdout
    assert f"api_key={REDACTED}" in done[3].stdout
    assert leaking(tmp_path, *done) == []


@pytest.mark.parametrize(
    "words",
    [
        ("bench", f"http://u:{SECRET}@127.0.0.1:9", "--model", "m"),
        ("bench", f"x://127.0.0.1:9/v1?api_key={SECRET}", "--model", "m"),
        ("bench", "http://127.0.0.1:9", "--model", "m", "--header", f"X-Api-Key: {SECRET}"),
        ("bench", "http://127.0.0.1:9", "--model", "m", "--header", f"X-Any: Bearer {SECRET}"),
        ("bench", "http://127.0.0.1:9", "--model", "m", "--extra-body", f'{{"api_key": "{SECRET}"'),
        ("bench", "http://127.0.0.1:9", "--model", "m", "--dcgm", f"http://u:{SECRET}@h"),
        ("bench", "http://127.0.0.1:9", "--model", "m", f"--hf-token={SECRET}"),
        ("tune", *LOAD, "--server-env", f"HF_TOKEN={SECRET}", "--dry-run"),
        ("tune", *LOAD, "--server-env", f"WORDS=--api-key {SECRET}", "--dry-run"),
        ("tune", *SIMULATED, "--server-args", f"api_kei={FORMATS[1]};hf_token={SECRET}"),
        ("tune", *SIMULATED, "--server-args", f"max_num_seqs=[4;hf_token={SECRET}"),
        ("simulate", "--model", f"https://u:{SECRET}@h/x", "--gpu", "L4"),
        ("simulate", "--model", FORMATS[0], "--gpu", "L4"),
        ("simulate", *LOAD[:4], "--workload", f"api_key={SECRET}"),
        ("bench", "http://127.0.0.1:9", "--config", "secret.toml"),
    ],
    ids=str,
)
def test_an_error_does_not_repeat_a_secret_of_the_command(called, tmp_path, words):
    (tmp_path / "secret.toml").write_text(f'[bench]\napi_key = "{SECRET}"\n')
    done = called(*words)
    assert done.returncode == 2
    assert "error: " in done.stderr
    assert leaks(done.stdout + done.stderr) == []


def test_results_and_errors_of_the_library_show_no_secret():
    load = {"gpu": "L4", "concurrency": 2, "requests": 8}
    made = st.simulate("Qwen/Qwen3-4B", **load, server_args=SETTINGS, allow_unknown=True)
    planned = st.tune(
        model="Qwen/Qwen3-4B", gpu="L4", concurrency="2,4", server_args=SETTINGS, dry_run=True
    )
    with pytest.raises(InputError) as refused:
        st.bench(f"x://h:9?api_key={SECRET}", model="m")
    error = ServetuneError(f"--api-key {SECRET}", hint=f"password={SECRET}")
    plan = Plan(model="m", extra=tuple(SETTINGS.items()))
    results = (made, planned, *planned.planned, refused.value, error)
    shown = [f"{plan!r} {plan.label}", *(f"{each!r} {each}" for each in results)]
    assert leaks("".join([*shown, str(error.args), str(vars(error))])) == []


def test_a_configuration_out_of_which_a_secret_was_taken_does_not_run_without_it(called, tmp_path):
    words = ("--server-args", f"hf_token={SECRET};max_num_seqs=[8]", "--allow-unknown")
    done = called("tune", *SIMULATED, *words, "--output-json", "q.json")
    assert done.returncode == 0, done.stderr
    again = called("tune", "--config", "q.toml", "--output-json", "r.json")
    assert again.returncode == 2
    assert f"server_args holds {REDACTED}" in again.stderr
    given = called("tune", "--config", "q.toml", *words, "--output-json", "r.json")
    assert given.returncode == 0, given.stderr


def test_a_traceback_of_what_nobody_foresaw_shows_no_secret():
    program = (
        "import click, servetune.cli.main as main\n"
        "def fail(): raise RuntimeError('--api-key ' + 'Tiger7' + 'woods9Xq')\n"
        "main.main(click.Command('x', callback=fail))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"RuntimeError: --api-key {REDACTED}" in done.stderr
    assert "Traceback" in done.stderr


def test_notes_and_progress_of_the_library_show_no_secret(caplog):
    caplog.set_level("INFO", "servetune")
    note(f"nothing is known of --api-key {SECRET}")
    progress(f"starting HF_TOKEN={SECRET} serve")
    assert leaks(caplog.text) == []
    assert caplog.text.count(REDACTED) == 2
