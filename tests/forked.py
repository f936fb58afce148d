"""The command line as processes that fork from one which has imported all of it.

Most of a short command's time goes into imports: 0.4 s of CPU, with boto3 a second. A fork has a
process id, folder, environment, signals and exit status of its own, and costs 0.02 s. What only a
new interpreter shows (import errors, `PYTHON...` variables, a terminal) is left to one: `Process`
starts it where a test asks for that, and most of tests/cli/test_main.py does.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path

COMMAND = [sys.executable, "-m", "servetune"]


class Process(subprocess.Popen):
    """`subprocess.Popen`, with `python -m servetune ...`, or a module of it, as a fork."""

    _status = None  # connection that brings the exit status

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *more):
        words, env = list(map(os.fspath, args)), dict(os.environ if env is None else env)
        env.setdefault("SERVETUNE_HOME", os.environ["SERVETUNE_HOME"])  # never the real home
        pipes, new_session = more[3:9], more[-2]
        streams = [
            own if given == -1 else given for own, given in enumerate((pipes[0], *pipes[3::2]))
        ]
        if (
            words[:2] != COMMAND[:2]
            or words[2].partition(".")[0] != "servetune"
            or preexec_fn
            or pass_fds
            or any(map(os.isatty, streams))
            or _read_at_start(env) != _READ_AT_START
        ):
            return super()._execute_child(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *more
            )
        folder = str(Path(cwd or ".").absolute())
        request = {"words": words, "cwd": folder, "env": env, "session": new_session}
        content = json.dumps(request).encode()
        self._status = socket.socket(socket.AF_UNIX)
        self._status.connect(_address())
        socket.send_fds(self._status, [len(content).to_bytes(4, "big")], streams)
        self._status.sendall(content)
        self.pid = self._number()
        self._child_created = True
        self._close_pipe_fds(*pipes)
        return None

    def _number(self):
        content = self._status.recv(4, socket.MSG_WAITALL)
        assert len(content) == 4, "the process that forks is gone"
        return int.from_bytes(content, "big")

    def _try_wait(self, wait_flags):
        if self._status is None:
            return super()._try_wait(wait_flags)
        if wait_flags == os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        number = self._number()
        self._status.close()
        return self.pid, number

    def _internal_poll(self, *args, **options):
        if self._status is None:
            return super()._internal_poll(*args, **options)
        with self._waitpid_lock:
            if self.returncode is None:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
        return self.returncode


def run(words, *, timeout=None, **options):
    """`subprocess.run` with text captured, by way of `Process`."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    with Process(words, **options) as process:
        try:
            told = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(words, process.returncode, *told)


def _read_at_start(env):
    """Variables that change what an interpreter does, and that it reads when it starts."""
    harmless = {"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}
    return {
        name: env[name]
        for name in env
        if (name.startswith("PYTHON") and name not in harmless) or name in {"LC_ALL", "LC_CTYPE"}
    }


_READ_AT_START = _read_at_start(os.environ)


@functools.cache
def _address():
    """Socket of this test process's forking process, which ends with it."""
    folder = Path(tempfile.mkdtemp())
    address = str(folder / "socket")
    process = subprocess.Popen(
        [sys.executable, __file__, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
    )
    process.stdout.readline()

    def end():
        process.stdin.close()
        process.stdout.close()
        process.wait()
        Path(address).unlink()
        folder.rmdir()

    atexit.register(end)
    return address


class _Forking:
    """The process that forks: connections of commands by process id."""

    def __init__(self, address):
        self._running = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen()
        self._ended, wakes = os.pipe()
        self._pipes = (self._ended, wakes)
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's, to all of its processes

    def next_command(self):
        """Fork for each request; returns it in the fork, and None once the owner is gone."""
        while True:
            ready, _, _ = select.select([self._listener, self._ended, 0], [], [])
            if self._ended in ready:
                os.read(self._ended, 4096)
                self._reap()
            if self._listener in ready:
                connection, _ = self._listener.accept()
                length, streams, _, _ = socket.recv_fds(connection, 4, 3)
                content = connection.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)
                pid = os.fork()
                if pid == 0:
                    self._leave(connection)
                    return json.loads(content), streams
                for stream in streams:
                    os.close(stream)
                self._running[pid] = connection
                connection.sendall(pid.to_bytes(4, "big"))
            if 0 in ready:
                return None

    def _reap(self):
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                connection = self._running.pop(ended[0])
                with contextlib.suppress(OSError):  # nobody waits for it any more
                    connection.sendall(ended[1].to_bytes(4, "big"))
                connection.close()

    def _leave(self, connection):
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for one in (self._listener, connection, *self._running.values()):
            one.close()
        for one in self._pipes:
            os.close(one)


def _perform(request, streams):
    """What a new interpreter would do with the request, in a fork; the exit status."""
    if request["session"]:
        os.setsid()
    for own, stream in enumerate(streams):
        os.dup2(stream, own)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = (
        open(own, mode, closefd=False)  # noqa: SIM115 - they stay open until its end
        for own, mode in enumerate(("r", "w", "w"))
    )
    sys.stderr.reconfigure(errors="backslashreplace", line_buffering=True)
    if request["env"].get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    random.seed()
    sys.orig_argv = request["words"]
    _, _, module, *arguments = request["words"]
    sys.argv = [module, *arguments]
    sys.modules.pop(module, None)  # it is `__main__`, and not here twice
    code = 1
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        traceback.print_exc()
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    return code


def read_service_models_once():
    """Have all AWS sessions of this process share the descriptions of services, 2 MB of JSON."""
    with contextlib.suppress(ImportError):
        session = importlib.import_module("botocore.session")
        session.create_loader = functools.cache(session.create_loader)


def _import_all():
    package = importlib.import_module("servetune")
    for module in pkgutil.walk_packages(package.__path__, "servetune."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(module.name)
    with contextlib.suppress(ImportError):
        importlib.import_module("boto3")
    read_service_models_once()


def _serve(address):
    _import_all()
    gc.collect()
    gc.freeze()
    forking = _Forking(address)
    os.write(1, b"ready\n")
    if command := forking.next_command():
        os._exit(_perform(*command))


if __name__ == "__main__":
    _serve(sys.argv[1])
