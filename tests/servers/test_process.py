"""Real processes, most of them misbehaving; nothing may be left of any."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from servetune.errors import EngineDied, EngineError, EngineNotReady, PortBusy
from servetune.servers.drain import MOST_BYTES
from servetune.servers.ports import free_port
from servetune.servers.process import ServerOptions, ServerProcess

pytestmark = pytest.mark.xdist_group("processes")

SERVERS = Path(__file__).with_name("doubles")
READY_S = 30.0  # patience of a test on a busy machine, not an expectation


class SteppingClock:
    """A clock that moves by what is slept, as fast as the processes allow."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def now_s(self) -> float:
        return self.passed_s

    async def sleep(self, duration_s: float) -> None:
        raise AssertionError("a server process waits with pause")

    def pause(self, duration_s: float) -> None:
        self.passed_s += duration_s
        time.sleep(min(duration_s, 0.02))


@pytest.fixture
def server(tmp_path):
    """Make servers of a mode; each must have left no process when the test ends."""
    made = []

    def make(mode, *arguments, **options):
        port = options.pop("port", None) or free_port()
        command = [sys.executable, str(SERVERS / "misbehave.py"), mode, str(port), *arguments]
        log_path = tmp_path / "logs" / f"{mode}.log"
        times = {name: options.pop(name) for name in ("clock", "pause", "host") if name in options}
        made.append(
            ServerProcess(
                command, log_path=log_path, port=port, options=ServerOptions(**options), **times
            )
        )
        return made[-1]

    yield make
    for one in made:
        one.stop(grace_s=0.0)
        assert not one.processes()


def gone(pid):
    """Whether a process has ended; a zombie that nobody reaps has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(holds, patience_s=READY_S):
    deadline_s = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.02)


def children_in_log(one):
    return [int(line.split()[1]) for line in one.log_tail().splitlines() if "child " in line]


def test_a_good_server_becomes_ready_and_leaves_nothing(server):
    with server("good") as one:
        assert one.wait_ready(READY_S) >= 0
        assert one.alive()
        assert one.poll_death() is None
        pids = one.processes()
        assert one.pid in pids
    assert all(gone(pid) for pid in pids)
    assert not one.alive()
    assert one.poll_death() is None, "a server that was stopped has not died"


def test_stop_may_be_called_again_and_before_the_start(server):
    never = server("good")
    never.stop()
    with server("good") as one:
        one.wait_ready(READY_S)
        one.stop()
        one.stop()


def test_it_runs_in_a_session_of_its_own_so_that_ctrl_c_does_not_reach_it(server):
    with server("good") as one:
        assert os.getsid(one.pid) == one.pid != os.getsid(0)


def test_its_session_gives_way_to_the_load_client_where_the_kernel_groups_sessions(server):
    one = server("good")
    one.start()
    autogroup = Path(f"/proc/{one.pid}/autogroup")
    if not autogroup.exists():
        pytest.skip("this kernel has no autogroups")
    assert autogroup.read_text().split()[-1] == "5"


def test_a_server_that_exits_at_once_is_reported_with_its_log(server):
    with server("exits") as one, pytest.raises(EngineDied) as caught:
        one.wait_ready(600)
    assert caught.value.exit_code_of_server == 7
    assert "exit code 7 before it was ready: ValueError: the widget is missing" in str(caught.value)
    assert caught.value.log_tail.splitlines() == ["loading", "ValueError: the widget is missing"]
    assert str(one.log_path) in caught.value.hint


def test_a_crash_names_the_signal(server):
    with server("crashes") as one, pytest.raises(EngineDied, match="was ended by SIGSEGV") as it:
        one.wait_ready(600)
    assert it.value.exit_code_of_server == -signal.SIGSEGV


@pytest.mark.parametrize(
    ("mode", "rung"),
    [("never-opens", r"port \d+ is not open"), ("unready", "/health answers 503")],
)
def test_a_server_that_is_late_is_reported_by_the_rung_it_reached(server, mode, rung):
    clock = SteppingClock()
    with server(mode, clock=clock, pause=clock.pause) as one:
        wait_until(lambda: mode == "never-opens" or "503" in (one._rung() or ""))
        wait_until(lambda: mode != "never-opens" or one.log_tail())
        with pytest.raises(EngineNotReady, match=rung) as caught:
            one.wait_ready(5)
        assert one.alive()
    assert caught.value.waited_s == pytest.approx(5)
    assert caught.value.log_tail == ("still loading" if mode == "never-opens" else "")


def test_a_server_on_another_port_than_told_is_never_ready(server):
    clock = SteppingClock()
    one = server("elsewhere", str(free_port()), clock=clock, pause=clock.pause)
    with one, pytest.raises(EngineNotReady, match="is not open"):
        one.wait_ready(3)


def test_death_after_readiness_is_noticed_and_explained(server):
    with server("dies-later") as one:
        with contextlib.suppress(EngineDied):  # on a busy machine it dies between two looks
            one.wait_ready(READY_S)
        wait_until(lambda: not one.alive())
        death = one.poll_death()
        assert death is not None
        assert death.exit_code_of_server == 9


def test_a_server_that_ignores_sigterm_is_killed_after_the_grace(server):
    with server("stubborn") as one:
        one.wait_ready(READY_S)
        pid = one.pid
        one.stop(grace_s=0.1)
        assert gone(pid)


def test_children_that_ignore_sigterm_go_with_the_server(server):
    with server("leaks-into-two-sessions") as one:
        one.wait_ready(READY_S)
        children = children_in_log(one)
        assert len(children) == 2
        assert one.processes().issuperset(children)
        assert not any(gone(child) for child in children)
    assert all(gone(child) for child in children)


def test_children_of_a_process_without_its_first_thread_are_seen_and_go(server):
    with server("headless") as one:
        wait_until(lambda: one.pid is not None and gone(one.pid))
        [child] = children_in_log(one)
        assert child in one.processes()
    assert gone(child)


@pytest.mark.parametrize("mode", ["leaks-into-two-sessions", "leaks-and-dies"])
def test_what_was_ended_is_reaped_too(server, mode):
    # A PID 1 that never waits for children, as in many containers, would keep the zombies.
    with server(mode) as one:
        wait_until(lambda: len(children_in_log(one)) == 2)
        pids = {one.pid, *children_in_log(one)}
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_children_of_a_dead_leader_go_before_anyone_calls_stop(server):
    with server("leaks-and-dies") as one:
        wait_until(lambda: not one.alive())
        children = children_in_log(one)
        assert len(children) == 2
        wait_until(lambda: all(gone(child) for child in children))
        death = one.poll_death()
        assert death is not None
        assert death.exit_code_of_server == 3


def test_a_talkative_server_is_drained_and_its_tail_kept_without_colours(server):
    with server("chatty") as one:
        one.wait_ready(READY_S)
        assert one.log_path.stat().st_size > 2_000_000
        tail = one.log_tail(2).splitlines()
    assert [line.split(" x")[0] for line in tail] == ["line 39998", "line 39999"]


@pytest.mark.slow
def test_a_server_that_writes_100_mb_keeps_a_bounded_log_with_what_matters(server):
    with server("roars") as one:
        one.wait_ready(120)
        wait_until(lambda: one.log_tail(1) == "the last word")  # a pipe holds the last MB
        text = one.log_path.read_text()
        assert [path.name for path in one.log_path.parent.iterdir()] == [one.log_path.name]
    assert len(text) <= MOST_BYTES
    assert text.startswith("the settings are blue\n")
    assert "ERROR 0600: CUDA out of memory" in text
    assert "servetune left" in text


@pytest.mark.slow
def test_why_a_server_died_is_found_below_much_that_it_wrote_afterwards(server):
    with server("roars", "and-dies") as one, pytest.raises(EngineDied) as caught:
        one.wait_ready(120)
    assert "the GPU is out of memory (Tried to allocate 2.00 GiB)" in caught.value.message


def test_a_server_whose_log_finds_no_room_goes_on(tmp_path):
    script = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))  # a disk that is full at 1 MiB
from pathlib import Path
from servetune.servers.ports import free_port
from servetune.servers.process import ServerProcess
port = free_port()
command = [sys.executable, {str(SERVERS / "misbehave.py")!r}, "chatty", str(port)]
with ServerProcess(command, log_path=Path("server.log"), port=port) as one:
    one.wait_ready(60)
    print("ready", one.log_path.stat().st_size)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == f"ready {1 << 20}\n", done.stderr


def test_a_foreign_server_on_the_port_is_noticed_before_the_start(server):
    with server("good") as foreign:
        foreign.wait_ready(READY_S)
        mine = server("good", port=foreign.port)
        with pytest.raises(PortBusy) as caught:
            mine.start()
        assert caught.value.port == foreign.port
        assert mine.pid is None
        assert foreign.alive()


def test_a_foreign_server_that_takes_the_port_after_the_start_is_not_measured(server, tmp_path):
    mine = server("never-opens")
    with mine, server("good", port=mine.port) as foreign:
        foreign.wait_ready(READY_S)
        with pytest.raises(PortBusy, match=f"port {mine.port} is already in use"):
            mine.wait_ready(READY_S)


def test_a_program_that_does_not_exist_is_one_clear_error(tmp_path):
    one = ServerProcess(["no-such-engine"], log_path=tmp_path / "log", port=free_port())
    with pytest.raises(EngineError, match="no-such-engine cannot be started: No such file"):
        one.start()
    assert not one.processes()


def test_a_server_gets_the_environment_it_was_given_and_no_other(server, tmp_path):
    code = "import os; print(os.environ.get('WIDGET'), os.environ.get('HOME'))"
    one = ServerProcess(
        [sys.executable, "-c", code],
        log_path=tmp_path / "log",
        port=free_port(),
        options=ServerOptions(environment={"WIDGET": "blue"}),
    )
    with one, pytest.raises(EngineDied):
        one.wait_ready(READY_S)
    assert one.log_tail() == "blue None"


def test_servers_inherit_no_ignored_signals(tmp_path):
    code = "import signal; print([signal.getsignal(n).name for n in (1, 15, 17)])"
    one = ServerProcess([sys.executable, "-c", code], log_path=tmp_path / "log", port=free_port())
    with one, pytest.raises(EngineDied):
        one.wait_ready(READY_S)
    assert one.log_tail() == "['SIG_DFL', 'SIG_DFL', 'SIG_DFL']"


def test_stop_from_another_thread_ends_the_wait(server):
    one = server("never-opens")
    with one:
        stopper = threading.Timer(0.2, one.stop)
        stopper.start()
        with pytest.raises(EngineError, match="was stopped before it was ready"):
            one.wait_ready(600)
        stopper.join()


def test_ctrl_c_while_it_starts_stops_the_server(server):
    presses = iter([True])

    def interrupt(duration_s):
        if next(presses, False):
            raise KeyboardInterrupt
        time.sleep(duration_s)

    one = server("never-opens", pause=interrupt)
    pids = set()

    def start_and_wait():
        with one:
            pids.update(one.processes())
            one.wait_ready(600)

    with pytest.raises(KeyboardInterrupt):
        start_and_wait()
    assert pids
    assert all(gone(pid) for pid in pids)


def test_a_second_ctrl_c_cuts_the_grace_short(server):
    presses = iter([True])

    def impatient(duration_s):
        if one._stopping and next(presses, False):
            raise KeyboardInterrupt
        time.sleep(duration_s)

    one = server("stubborn", pause=impatient)
    one.start()
    one.wait_ready(READY_S)
    pid = one.pid
    with pytest.raises(KeyboardInterrupt):
        one.stop(grace_s=600)
    assert gone(pid)


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_when_the_watchdog_itself_is_killed(server, signal_number):
    with server("leaks") as one:
        one.wait_ready(READY_S)
        pids = one.processes()
        os.kill(one._watchdog.pid, signal_number)
        wait_until(lambda: one.poll_death() is not None)
        wait_until(lambda: gone(one.pid))
        one.stop()
    assert all(gone(pid) for pid in pids)


@pytest.mark.parametrize("mode", ["leaks-into-two-sessions", "stubborn"])
def test_nothing_is_left_when_servetune_is_killed(tmp_path, mode):
    pids, _ = run_owner(tmp_path, mode, "kill")
    wait_until(lambda: all(gone(pid) for pid in pids))


def test_nothing_is_left_when_servetune_is_killed_and_a_fork_holds_its_pipes(tmp_path):
    pids, fork = run_owner(tmp_path, "good", "fork")
    try:
        wait_until(lambda: all(gone(pid) for pid in pids))
    finally:
        os.kill(fork, signal.SIGKILL)


def run_owner(tmp_path, mode, way):
    """Ids of the server that a killed process has left, and of that process' fork."""
    script, port = SERVERS / "killed_owner.py", free_port()
    log_path, out_path = tmp_path / "server.log", tmp_path / "out"
    with out_path.open("w") as out:
        owner = subprocess.Popen(
            [sys.executable, str(script), mode, str(port), str(log_path), way], stdout=out
        )
        assert owner.wait(READY_S) == -signal.SIGKILL
    *pids, fork = [int(word) for word in out_path.read_text().split()]
    assert len(pids) >= 1
    return pids, fork
