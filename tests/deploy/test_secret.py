import pytest

from servetune.deploy.secret import REDACTED, is_secret_name, looks_secret, redacted

PLANTED = ["hf_" + "a1B2" * 9, "AKIA" + "ABCD" * 4, "ghp_" + "x" * 36, "sk-" + "k" * 24]


@pytest.mark.parametrize("token", PLANTED)
def test_a_planted_credential_is_seen_and_taken_out(token: str) -> None:
    assert looks_secret(f"--flag={token}")
    shown = redacted({"cmd": [f"x {token} y"], "nested": {token: 1}})
    assert token not in str(shown)
    assert shown["cmd"] == [f"x {REDACTED} y"]


def test_what_is_no_credential_stays() -> None:
    plain = {"model": "Qwen/Qwen3-4B", "hf_overrides": {"a": 1}, "max_num_batched_tokens": 8192}
    assert redacted(plain) == plain
    assert not looks_secret("hf_overrides task-of-a-very-long-name-indeed")


def test_a_secret_setting_is_known_by_its_name() -> None:
    assert redacted({"HF_TOKEN": "anything", "api_key": None}) == {
        "HF_TOKEN": REDACTED,
        "api_key": None,
    }
    assert all(map(is_secret_name, ("hf_token", "--api-key", "HF_TOKEN", "aws_secret_key")))
    assert not any(map(is_secret_name, ("tokenizer", "max_tokens", "max_num_batched_tokens")))
