"""What all tests share: where the optional shared data are, and the command line as a process."""

import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest

ROOT = Path(__file__).parents[1]

# Makes forked.py and groups.py importable; pytest's importlib mode does not.
sys.path.insert(0, str(ROOT / "tests"))

# Ray reads these when it is imported: it tells nobody of itself, and the loopback is every
# node's address.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"

# A region of whoever runs the tests would be in rendered files; the live test has its own.
if "SERVETUNE_AWS_ROLE" not in os.environ:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        os.environ.pop(name, None)
    os.environ["AWS_CONFIG_FILE"] = os.environ["AWS_SHARED_CREDENTIALS_FILE"] = "/nonexistent"

# Runs that tests make register here, and never in the home of whoever runs the tests.
_HOME = tempfile.TemporaryDirectory(prefix="servetune-tests-")
os.environ["SERVETUNE_HOME"] = _HOME.name


def pytest_configure():
    """Have Ctrl-C reach what the tests start: a shell's background job hands on deaf ears."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption(
        "--part",
        choices=("together", "alone"),
        help="tests that may run beside others (with -n), or those marked `timed`; no slow ones",
    )
    parser.addoption("--slow", action="store_true", help="of a part, the tests marked `slow` alone")


def pytest_collection_modifyitems(config, items):
    """Select one part of `make test`, or of `make test-slow`.

    Tests wait more than they reckon, so several processes run them side by side. A test that
    judges times is marked `timed` and has the machine to itself. Tests that look at processes of
    the whole machine, or leave some behind on purpose, are of one `xdist_group`: one process
    runs them, one after another.
    """
    part = config.getoption("--part")
    if part is None:
        return
    slow, chosen, others = config.getoption("--slow"), [], []
    for item in items:
        belongs = "alone" if item.get_closest_marker("timed") else "together"
        here = belongs == part and slow == bool(item.get_closest_marker("slow"))
        (chosen if here else others).append(item)
    items[:] = chosen
    config.hook.pytest_deselected(items=others)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Hand out tests by function, all cases of one together, and those of an `xdist_group`.

    xdist's own loadgroup hands out case by case: 20 s of a core more for ten thousand tests. And
    it writes groups where pytest 9.2 does not read them (xdist 3.8), so they are read here from the
    files, each of which has one for all of its tests.
    """
    from xdist.scheduler import LoadScopeScheduling

    from groups import group_of

    class ByFunction(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return group_of(ROOT / nodeid.partition("::")[0]) or nodeid.partition("[")[0]

    return ByFunction(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.fixture(scope="session")
def shared():
    """The folder of shared measurements; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("SERVETUNE_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip("the shared data are not here")
    return folder


@pytest.fixture(scope="session")
def every_catalogue_model():
    """Run a check on each model of the catalogue; one failure lists all models that fail it."""
    from servetune.models import catalogue

    def walk(check):
        failures = {}
        for name in sorted(catalogue()):
            try:
                check(name)
            except AssertionError as error:
                failures[name] = str(error).splitlines()[0]
        assert not failures, "\n".join(f"{name}: {why}" for name, why in failures.items())

    return walk


@pytest.fixture
def servetune(tmp_path):
    """Run the command line as a user would, in an empty folder; a process of its own."""
    import forked

    def run(*arguments, timeout_s=120, **options):
        words = [*forked.COMMAND, *map(str, arguments)]
        return forked.run(words, timeout=timeout_s, cwd=options.pop("cwd", tmp_path), **options)

    return run


@pytest.fixture
def called(tmp_path, monkeypatch):
    """`servetune` in this very process, for verbs that reckon and start nothing: a process of
    their own would spend most of its time on importing numpy.
    """

    from servetune.cli.main import main

    def run(*arguments, env=None, cwd=tmp_path, timeout_s=None):
        words = ["servetune", *map(str, arguments)]
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
        env = {"SERVETUNE_HOME": _HOME.name, **(os.environ if env is None else env)}
        environ = mock.patch.dict(os.environ, env, clear=True)
        with monkeypatch.context() as patch, environ, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(sys, "argv", words)
            patch.chdir(cwd)
            with pytest.raises(SystemExit) as stop:
                main()
        return subprocess.CompletedProcess(words, stop.value.code, *map(text_of, (out, err)))

    def text_of(stream):
        stream.seek(0)
        return stream.read()

    return run


class RayCluster:
    """A Ray cluster in a process of its own, whose nodes come and go."""

    def __init__(self, log):
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "ray_nodes.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        self.address = self._answer()["address"]
        self._nodes = []

    def add(self, **resources):
        """A node with so many `num_cpus`, `num_gpus`, `resources`; its id."""
        self._nodes.append(self._ask({"add": resources})["node_id"])
        return self._nodes[-1]

    def kill(self, node_id):
        self._nodes.remove(node_id)
        self._ask({"kill": node_id})

    def clear(self):
        for node_id in self._nodes:
            self._ask({"remove": node_id})
        self._nodes = []

    def close(self):
        self._process.stdin.close()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.stdout.close()

    def _ask(self, order):
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self):
        for line in self._process.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
        raise RuntimeError("the Ray cluster did not come up")


@pytest.fixture(scope="session")
def _ray_cluster(tmp_path_factory):
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: make test-ray installs it and runs these")
    with (tmp_path_factory.mktemp("ray") / "cluster.log").open("w") as log:
        cluster = RayCluster(log)
        yield cluster
        cluster.close()


@pytest.fixture
def ray_cluster(_ray_cluster):
    """A cluster with a head that has no core to give; a test adds nodes, which are gone after."""
    yield _ray_cluster
    import ray

    ray.shutdown()
    _ray_cluster.clear()
