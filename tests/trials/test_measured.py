import shlex

import pytest

from servetune.engines import engine
from servetune.plan import Plan
from servetune.trials.launch import Launch, server_command

PLAN = Plan(model="m", tensor_parallel=2, max_num_seqs=8)
SETTINGS = {"tensor_parallel_size": 2, "max_num_seqs": 8}


def command(**launch):
    words = server_command(
        engine("vllm"), PLAN, Launch(**launch), settings=SETTINGS, executable=None, port=8123
    )
    return shlex.join(words)


def test_the_engines_own_command_is_used():
    assert command() == (
        "vllm serve m --host 127.0.0.1 --port 8123 --tensor-parallel-size=2 --max-num-seqs=8"
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("serve {model} --port {port}", "serve m --port 8123"),
        ("serve --port={port} --host {host}", "serve --port=8123 --host 127.0.0.1"),
        ("serve m", "serve m --host 127.0.0.1 --port 8123"),
        ("serve 'a b'", "serve 'a b' --host 127.0.0.1 --port 8123"),
    ],
)
def test_the_users_command_gets_what_it_leaves_out_and_the_settings(given, expected):
    tail = " --tensor-parallel-size=2 --max-num-seqs=8"
    assert command(server_cmd=given) == expected + tail
