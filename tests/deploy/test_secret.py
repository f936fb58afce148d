"""Planted credentials must come out nowhere: text, records, terminal, bundles, errors."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune import secret
from servetune.cli.output import echo
from servetune.deploy import Bundle
from servetune.errors import DeployError
from servetune.secret import REDACTED, is_secret_name, looks_secret, redacted, redacted_text
from servetune.store import TrialRecord
from servetune.store.schema import Failure, TrialConfig, record_from_json

#: By their own spelling.
PLANTED = [
    "hf_" + "a1B2" * 9,
    "AKIA" + "ABCD" * 4,
    "ghp_" + "x" * 36,
    "github_pat_" + "y" * 40,
    "glpat-" + "z" * 20,
    "sk-" + "k" * 24,
    "nvapi-" + "n" * 30,
    "xoxb-" + "1" * 20,
    "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.c2lnbmF0dXJlMTIz",
    "AIza" + "S" * 35,
    "npm_" + "p" * 36,
    "dckr_pat_" + "d" * 24,
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAK\n-----END RSA PRIVATE KEY-----",
]

#: By what stands before; `SECRET` is the plain word that must go.
SAID = [
    "vllm serve m --api-key SECRET --port 1",
    "vllm serve m --api-key=SECRET",
    "HF_TOKEN=SECRET vllm serve m",
    "aws_secret_access_key = SECRET",
    '{"api_key": "SECRET", "x": 1}',
    "Authorization: Bearer SECRET",
    "authorization: basic SECRET",
    "GET /?X-Amz-Signature=SECRET&x=1",
    "X-Amz-Security-Token=SECRET",
    "password: SECRET",
    "GITHUB_TOKEN=SECRET make",
    "PGPASSWORD=SECRET psql",
    "OPENAI_KEY=SECRET",
    "WANDB_API_KEY: SECRET",
    "AZURE_STORAGE_KEY=SECRET",
    "DB_PASSWORD=SECRET",
    "MY_CLIENT_PASSWORD='SECRET'",
    "--auth-token SECRET --port 1",
    "--hub-token=SECRET",
    "non-default args: {'api_key': ['SECRET'], 'port': 1}",
    "Namespace(api_key='SECRET', model='m')",
    'private_key = "SECRET"',
    "git clone https://SECRET@example.org/x",
]
SECRET = "tiger-woods-2000+/x"


@pytest.mark.parametrize("token", PLANTED)
def test_a_planted_credential_is_seen_and_taken_out(token: str) -> None:
    assert looks_secret(f"--flag={token}")
    shown = redacted({"cmd": [f"x {token} y"], "nested": {token: 1}})
    assert token not in str(shown)
    assert shown["cmd"] == [f"x {REDACTED} y"]


@pytest.mark.parametrize("text", SAID)
def test_a_credential_without_a_spelling_is_known_by_what_stands_before(text: str) -> None:
    shown = redacted_text(
        text.replace("SECRET", SECRET.replace("/", "-") if "://" in text else SECRET)
    )
    assert SECRET not in shown
    assert "tiger" not in shown
    assert shown == text.replace("SECRET", REDACTED)


@pytest.mark.parametrize(
    "name",
    ["api_key", "--api-key", "hf_token", "HF_TOKEN", "GITHUB_TOKEN", "PGPASSWORD", "OPENAI_KEY",
     "AWS_SECRET_ACCESS_KEY", "db_password", "client_secret", "WANDB_API_KEY", "auth-token"],
)  # fmt: skip
def test_a_setting_is_a_credential_by_its_name_wherever_it_stands(name: str) -> None:
    assert is_secret_name(name)
    for held in (
        {name: "tiger"},
        [[name, "tiger"]],
        {"extra": [(name, "tiger")]},
        {"a": {name: ["tiger"]}},
    ):
        assert "tiger" not in json.dumps(redacted(held))


@pytest.mark.parametrize(
    "name",
    ["max_num_batched_tokens", "tokenizer", "pad_token", "eos_token", "key", "routing_key",
     "max_tokens", "password_file_mode", "secret_arn", "sort_keys", "token_times"],
)  # fmt: skip
def test_a_setting_that_only_sounds_like_one_stays(name: str) -> None:
    assert not is_secret_name(name)
    assert redacted({name: "tiger"}) == {name: "tiger"}


def test_what_is_no_credential_stays() -> None:
    plain = {"model": "Qwen/Qwen3-4B", "hf_overrides": {"a": 1}, "max_num_batched_tokens": 8192}
    assert redacted(plain) == plain
    assert not looks_secret("hf_overrides task-of-a-very-long-name-indeed")
    for text in (
        "give --hf-token-secret ARN or --hf-token-from-env",
        "HF_TOKEN is not set",
        "api_key: null",
        "first token after 30 ms, tokens/s=900",
        "the bearer token lasts 12 h",
        "max_tokens=8 tokenizer=auto",
        "X-Api-Key: $TENANT_KEY",
        "Authorization: Bearer ${TENANT_KEY}",
    ):
        assert redacted_text(text) == text
    assert redacted_text("--api-key $tiger") == f"--api-key {REDACTED}", "only names of variables"


@settings(max_examples=300, deadline=None)
@given(st.from_regex(secret._TOKENS))
def test_whatever_has_the_form_of_a_credential_is_looked_at(text: str) -> None:
    assert looks_secret(text)


@given(st.text())
def test_taking_out_twice_is_taking_out_once(text: str) -> None:
    once = redacted_text(text)
    assert redacted_text(once) == once


def test_a_secret_setting_is_known_by_its_name() -> None:
    assert redacted({"HF_TOKEN": "anything", "api_key": None}) == {
        "HF_TOKEN": REDACTED,
        "api_key": None,
    }
    assert all(map(is_secret_name, ("hf_token", "--api-key", "HF_TOKEN", "aws_secret_key")))
    assert not any(map(is_secret_name, ("tokenizer", "max_tokens", "max_num_batched_tokens")))


@pytest.mark.parametrize("token", PLANTED)
def test_a_record_is_written_without_it_and_is_otherwise_the_same(token: str) -> None:
    args: dict[str, Any] = {"max_num_seqs": 8, "hf_token": "plain", "note": token}
    record = TrialRecord(
        config=TrialConfig(server_args=args, server_cmd_args=["--api-key", token]),
        cmd=f"vllm serve m --api-key {SECRET} {token}",
        results={"output_throughput": 1.5, "p99_ttft_ms": float("nan")},
        failure=Failure(kind="died", reason="x", log_tail=f"HF_TOKEN={token}"),
        key="0123456789abcdef",
    )
    line = record.to_json().decode()
    assert token not in line
    assert SECRET not in line
    back = record_from_json(json.loads(line))
    assert back.key == record.key
    assert back.config.server_args["max_num_seqs"] == 8
    assert back.config.server_args["hf_token"] == REDACTED
    assert back.results == {"output_throughput": 1.5, "p99_ttft_ms": None}


@pytest.mark.parametrize("token", PLANTED)
def test_a_bundle_with_one_is_refused(token: str) -> None:
    with pytest.raises(DeployError, match="looks like a credential") as caught:
        Bundle(files=(("environment.json", json.dumps({"X": token})),))
    assert token not in str(caught.value)


def test_progress_and_errors_on_the_terminal_are_without(
    capsys: pytest.CaptureFixture[str], servetune: Any
) -> None:
    echo(f"starting vllm serve m --api-key {SECRET}")
    assert capsys.readouterr().err == f"starting vllm serve m --api-key {REDACTED}\n"
    done = servetune("report", f"{PLANTED[0]}.jsonl")
    assert done.returncode == 2
    assert PLANTED[0] not in done.stderr
    assert REDACTED in done.stderr
