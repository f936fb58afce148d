"""What servers are given of the environment: read, and refused before anything starts."""

import pytest

from servetune.api.study_request import LaunchOptions
from servetune.errors import InputError
from servetune.hardware import node
from servetune.models import load_shape
from servetune.servers.launchers import environment_of
from servetune.trials import default_ready_timeout_s


def test_variables_have_values_and_names_are_handed_on(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_" + 30 * "a")
    said = environment_of(["B=x=y", "HF_TOKEN", "A=", "B=z"])
    assert said == ({"B": "z", "A": ""}, ("HF_TOKEN",))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("=x", "no name of a variable"),
        ("2=x", "no name of a variable"),
        ("CUDA_VISIBLE_DEVICES=1", "is decided by servetune"),
        ("SERVETUNE_OWNER=1:1", "is decided by servetune"),
        ("NOBODY_HAS_SET_THIS", "is not set here"),
        ("HF_TOKEN=abc", "is a secret"),
        ("OTHER=hf_" + 30 * "a", "is a secret"),
    ],
)
def test_what_cannot_be_given_is_refused(given, says):
    with pytest.raises(InputError, match=says) as caught:
        environment_of([given])
    assert caught.value.hint
    assert "abc" not in str(caught.value)
    assert "aaa" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--engine", "simulated", "--gpu", "L4", "--server-env", "A=1"], "--server-env is for"),
        (
            ["--engine", "external", "--url", "http://127.0.0.1:1", "--server-folder", "."],
            "--server-folder is for servers that servetune starts",
        ),
        (
            ["--launcher", "docker", "--image", "i", "--server-folder", "."],
            "a container has folders of its own",
        ),
        (["--server-folder", "nowhere"], "does not exist"),
    ],
)
def test_what_does_not_go_together_is_refused(servetune, options, says):
    ran = servetune("tune", "--model", "Qwen/Qwen3-4B", *options)
    assert ran.returncode == 2
    assert says in ran.stderr


def test_a_server_has_longer_to_become_ready_the_more_it_has_to_read():
    small = load_shape("Qwen/Qwen3-4B")
    large = load_shape("meta-llama/Llama-3.1-70B-Instruct")
    # Ten minutes, and 8 or 141 GB of weights at 0.2 GB/s.
    assert 600 + 38 < default_ready_timeout_s(small) < 600 + 45
    assert 600 + 690 < default_ready_timeout_s(large) < 600 + 720
    assert default_ready_timeout_s(None) == 600
    chosen = LaunchOptions(ready_timeout_s=30.0).launch("m", node(gpu="L4"), large)
    assert chosen.ready_timeout_s == 30.0
    assert LaunchOptions().launch("m", node(gpu="L4"), large).ready_timeout_s > 600 + 690
