"""Pages that are really served on the loopback address."""

import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import forked
import servetune as st

# The client beside these tests is no package of its own.
sys.path.insert(0, str(Path(__file__).parent))

from pages_client import Pages

TINY = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": 4096,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}

STUDY = {
    "engine": "simulated",
    "gpu": "L4",
    "num_gpus": 2,
    "server_args": "tensor_parallel_size=[1,2]",
    "client_args": "num_prompts=20;random_input_len=64;random_output_len=16",
    "concurrency": [2, 4],
}


@pytest.fixture(scope="session")
def study(tmp_path_factory):
    """Folder with one finished study."""
    folder = tmp_path_factory.mktemp("study")
    st.tune("Qwen/Qwen3-4B", **STUDY, output_json=folder / "q.json")
    return folder


@pytest.fixture
def results(study, tmp_path):
    """Folder `results` with that study, beside a file that is not to be seen."""
    (tmp_path / "secret.jsonl").write_bytes((study / "q.jsonl").read_bytes())
    shutil.copytree(study, tmp_path / "results")
    return tmp_path / "results"


@pytest.fixture
def served(request):
    """A function that serves folders or files in a thread of the test's process."""
    import uvicorn

    from servetune.api.pages import Renderer, Ui
    from servetune.ui import Library
    from servetune.ui.app import pages_app

    with contextlib.ExitStack() as stack:

        def serve(*sources):
            library = Library([Path(source) for source in sources], Renderer(Ui()))
            app = pages_app(library, token="right")
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            config = uvicorn.Config(
                app, lifespan="off", log_level="error", timeout_graceful_shutdown=5
            )
            server = uvicorn.Server(config)
            app.state.ending = lambda: server.should_exit
            thread = threading.Thread(target=server.run, args=([listening],))
            thread.start()
            stack.callback(thread.join)
            stack.callback(setattr, server, "should_exit", True)
            return Pages(listening.getsockname()[1], "right", app)

        yield serve


@pytest.fixture
def command(tmp_path):
    """A function that starts the command line in the test's folder; ended with the test."""
    for name in ("tiny", "results"):
        (tmp_path / name).mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(TINY))
    started = []

    def start(*words):
        process = forked.Process(
            [*forked.COMMAND, *map(str, words)],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stderr.close()


@pytest.fixture
def pages_process(command):
    """A function that starts `servetune ui`; the process and its client."""

    def start(*words):
        process = command(*words)
        said = process.stderr.readline() + process.stderr.readline()
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", said)[1])
        return process, Pages(port, re.search(r"trial off: (\S+)", said)[1])

    return start
