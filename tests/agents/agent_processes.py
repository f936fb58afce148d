"""What the tests of agents share."""

import contextlib
import sys

QUICK = {
    "model": "Qwen/Qwen3-4B",
    "gpu": "L4",
    "num_gpus": 2,
    "engine": "simulated",
    "server_args": ["tensor_parallel_size=[1,2]"],
    "concurrency": [2, 4],
    "requests": 20,
    "input_tokens": "64",
    "output_tokens": "16",
}

_STARTED: list[list[list[str]]] = []
_HOOKED: list[bool] = []


@contextlib.contextmanager
def processes_started():
    """Command lines of all processes that this one starts meanwhile, by Python's own audit."""
    if not _HOOKED:
        sys.addaudithook(_hear)
        _HOOKED.append(True)
    mine: list[list[str]] = []
    _STARTED.append(mine)
    try:
        yield mine
    finally:
        _STARTED.remove(mine)


def _hear(event, details):
    if event == "subprocess.Popen":
        words = [str(each) for each in details[1]]
    elif event in {"os.exec", "os.posix_spawn", "os.system", "os.fork", "os.forkpty"}:
        words = [event]
    else:
        return
    for each in _STARTED:
        if not (words[0].startswith("os.") and each):  # part of a Popen that was heard
            each.append(words)
