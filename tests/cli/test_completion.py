"""Completion in a shell: commands, options and the values that servetune knows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).with_name("servetune")

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="servetune is not installed")


def completed(*words: str) -> list[str]:
    env = {
        **os.environ,
        "_SERVETUNE_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("servetune", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [PROGRAM], env=env, capture_output=True, text=True, check=False, timeout=60
    )
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("estimate", "--gpu", "h10"), "H100"),
        (("tune", "--model", "qwen/qwen3-4"), "Qwen/Qwen3-4B"),
        (("recom",), "recommend"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (("simulate", "--instance", "ml.g6.12"), "ml.g6.12xlarge"),
                (("bench", "--workload", "rag"), "rag_document_qa"),
                (("tune", "--engine", "sg"), "sglang"),
                (("estimate", "--num"), "--num-gpus"),
            )
        ),
    ],
)
def test_a_shell_completes_what_is_known(words, found):
    assert found in completed(*words)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_servetune(servetune, shell):
    done = servetune("completion", shell)
    assert done.returncode == 0
    assert "_SERVETUNE_COMPLETE" in done.stdout


def test_an_unknown_shell_is_refused(servetune):
    assert servetune("completion", "tcsh").returncode == 2
