"""Words on the command line that once ended in a traceback, in nonsense, or in every file."""

import os

import pytest

from servetune.servers.drain import BoundedLog

SIMULATED = ("tune", "--engine", "simulated", "--model", "Qwen/Qwen3-4B", "--gpu", "L4")
LOAD = ("--model", "Qwen/Qwen3-4B", "--gpu", "L4")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*SIMULATED, "--client-args", "seed=-1;max_concurrency=2"), "seed"),
        ((*SIMULATED, "--server-args", "max_num_seqs=range(0,100000000000000000000)"), "values"),
        ((*SIMULATED, "--client-args", "num_prompts=1e12;max_concurrency=2"), "more than a run"),
        ((*SIMULATED, "--client-args", "num_prompts=300000000"), "more than a run can hold"),
        ((*SIMULATED, "-c", "2", "--constraints", "error_rate<=200"), "share from 0 to 1"),
        (("simulate", *LOAD, "-c", "9" * 400), "10^399 users are more than a run can hold"),
        (("simulate", *LOAD, "--rate", "1e-300", "-n", "10"), "no rate that a run can have"),
        (("simulate", *LOAD, "--rate", "1e300", "-n", "10"), "no rate that a run can have"),
        (("bench", "http://[::1"), "is not an http or https address"),
        (("bench", "http://localhost:99999"), "no usable port"),
        (("bench", "--sagemaker", "", "--model", "m"), "--sagemaker names no endpoint"),
        (
            ("tune", "--engine", "external", "--url", "http://localhost:99999", "--model", "m"),
            "is no URL of a server",
        ),
        (
            ("tune", "--engine", "external", "--url", "http://[::1", "--model", "m"),
            "is no URL of a server",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_one_error_with_a_hint(called, words, said):
    done = called(*words)
    assert done.returncode == 2
    error, hint, *_ = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
    assert error.startswith("error: ")
    assert said in error
    assert hint.startswith("hint: ")
    assert "Traceback" not in done.stderr


SECRETS = ("hf_" + "a1B2" * 9, "tiger-woods-2000")


def test_secrets_among_the_settings_reach_no_file_and_no_terminal(called, tmp_path):
    settings = f"hf_token={SECRETS[0]};api_key={SECRETS[1]}"
    sweep = ("--server-args", settings, "--allow-unknown", "-c", "2,4", "-n", "10")
    done = called(*SIMULATED, *sweep, "--output-json", "q.json")
    assert done.returncode == 0, done.stderr
    report = called("report", "q.jsonl", "--output-json", "r.json")
    pick = called("recommend", "q.jsonl", "--json")
    planned = called("tune", *LOAD, "--server-args", settings, "--allow-unknown", "--dry-run")
    told = "".join(each.stdout + each.stderr for each in (done, report, pick, planned))
    files = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert files.keys() >= {"q.json", "q.jsonl", "q.html", "q.toml", "r.json", "r.html"}
    for secret in SECRETS:
        assert secret not in told
        assert [name for name, text in files.items() if secret in text] == []


def test_secrets_of_a_foreign_journal_reach_no_page(called, tmp_path):
    called(*SIMULATED, "-c", "2", "-n", "10", "--output-json", "q.json")
    line = (tmp_path / "q.jsonl").read_text()
    planted = line.replace('"cmd":"', f'"cmd":"HF_TOKEN={SECRETS[0]} --api-key {SECRETS[1]} ', 1)
    assert planted != line
    (tmp_path / "theirs.jsonl").write_text(planted)
    told = called("report", "theirs.jsonl")
    pick = called("recommend", "theirs.jsonl")
    for secret in SECRETS:
        assert secret not in told.stdout + told.stderr + pick.stdout + pick.stderr
        for name in ("theirs.json", "theirs.html"):
            assert secret not in (tmp_path / name).read_text()


def test_a_servers_log_is_for_its_user_alone(tmp_path):
    before = os.umask(0)
    try:
        log = BoundedLog(str(tmp_path / "server.log"), most_bytes=100)
        log.write(b"a line\n" * 100)  # which makes room by a new file
    finally:
        os.umask(before)
    assert (tmp_path / "server.log").stat().st_mode & 0o777 == 0o600
