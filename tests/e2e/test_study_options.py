"""Order, budgets, early stops and servers side by side, over HTTP with real processes."""

import json
import shlex
import sys

import pytest

from servetune.store import latest, read_journal

PYTHON = shlex.quote(sys.executable)
SIMULATED = f"{PYTHON} -m servetune simulate --serve {{model}} --gpu L4 --speed 20 --port {{port}}"
FAKE = f"{PYTHON} -m servetune.testing.fake_server --port {{port}}"


@pytest.fixture
def tune(servetune, tiny):
    def run(
        *more,
        command=FAKE,
        server_args="max_num_seqs=[4,8]",
        client="max_concurrency=[2,4];num_prompts=16",
        output_len=16,
    ):
        return servetune(
            "tune",
            *("--model", "tiny", "--gpu", "L4", "--num-gpus", 4, "--server-cmd", command),
            *("--server-args", server_args),
            "--client-args",
            f"{client};random_input_len=16;random_output_len={output_len}",
            *("--output-json", "q.json", *more),
        )

    return run


def records_of(folder):
    return read_journal(folder / "q.jsonl")


def settings_of(record):
    return (
        record.config.server_args["max_num_seqs"],
        record.config.client_args["max_concurrency"],
    )


def test_interleaved_trials_go_round_the_configurations(tune, tmp_path):
    done = tune("--order", "interleaved", "--order-seed", 3)
    assert done.returncode == 0, done.stderr
    settings = [settings_of(record) for record in records_of(tmp_path)]
    assert {seqs for seqs, _ in settings[:2]} == {4, 8} == {seqs for seqs, _ in settings[2:]}
    assert len(set(settings)) == 4


def test_a_random_order_is_the_same_for_the_same_seed_measured_and_simulated(
    tune, servetune, tmp_path
):
    client, order = "max_concurrency=[1,2,3];num_prompts=8", ("--order", "random")
    assert tune(*order, "--order-seed", 5, client=client).returncode == 0
    first = [settings_of(record) for record in records_of(tmp_path)]
    assert first != sorted(first)
    for path in tmp_path.glob("q.*"):
        if path.is_file():
            path.unlink()
    again = servetune(
        *("tune", "--engine", "simulated", "--model", "Qwen/Qwen3-4B", "--gpu", "L4"),
        *("--server-args", "max_num_seqs=[4,8]", "--client-args", client),
        *("--output-json", "q.json", *order, "--order-seed", 5),
    )
    assert again.returncode == 0, again.stderr
    assert [settings_of(record) for record in records_of(tmp_path)] == first


def test_a_server_stays_while_a_search_asks_for_trials_of_its_settings(tune, tmp_path):
    done = tune("--strategy", "random", "--search-seed", 0, "--max-trials", 3)
    assert done.returncode == 0, done.stderr
    servers = [seqs for seqs, _ in map(settings_of, records_of(tmp_path))]
    assert len(set(servers[1:])) == 1, "the second and third asked for share a server"
    assert servers[0] != servers[1]
    assert done.stderr.count("\nready after") == 2
    assert "3 of 4 trials were run; 3 were to be run (--max-trials)" in done.stdout


def test_a_trial_that_plainly_misses_its_constraint_ends_early_and_says_why(tune, tmp_path):
    slow = f"{FAKE} --ttft-s 0.02 --itl-s 0.001"
    load = {"client": "max_concurrency=2;num_prompts=1000", "command": slow}
    done = tune("--constraints", "ttft:p50<=5ms", server_args="max_num_seqs=8", **load)
    assert done.returncode == 1, done.stderr
    [record] = records_of(tmp_path)
    assert record.status == "ok"
    assert "ttft:p50<=5ms is missed" in record.results["ended_reason"]
    assert 0 < record.results["completed"] < 1000
    assert record.results["failed"] == 0, "what was cut off has not failed"
    assert record.results["completed"] + record.results["not_sent"] < 1000 + 1


def test_it_runs_to_its_end_where_that_is_wanted(tune, tmp_path):
    slow = f"{FAKE} --ttft-s 0.01"
    done = tune(
        "--constraints",
        "ttft:p50<=5ms",
        "--no-early-stop",
        command=slow,
        server_args="max_num_seqs=8",
        client="max_concurrency=4;num_prompts=400",
    )
    assert done.returncode == 1, done.stderr
    [record] = records_of(tmp_path)
    assert record.results["completed"] == 400
    assert "ended_reason" not in record.results


def test_a_trial_has_a_time_of_its_own(tune, tmp_path):
    done = tune(
        "--max-time-per-trial",
        "1s",
        command=f"{FAKE} --itl-s 0.02",
        server_args="max_num_seqs=8",
        client="max_concurrency=2;num_prompts=1000",
    )
    assert done.returncode == 0, done.stderr
    [record] = records_of(tmp_path)
    assert record.results["ended_reason"] == "the trial's 1.00 s were over"
    assert 0 < record.results["completed"] < 1000


@pytest.mark.slow
def test_a_budget_puts_trials_off_and_resume_runs_them(tune, tmp_path):
    grid = {
        "command": f"{FAKE} --itl-s 0.02",
        "client": "max_concurrency=[2,4,6];num_prompts=12",
        "server_args": "max_num_seqs=[4,8]",
    }
    done = tune("--budget", "2.5s", "--strategy", "grid", **grid)
    assert done.returncode in (0, 2), done.stderr  # 2 where the machine is too busy for any
    records = records_of(tmp_path)
    put_off = [r for r in records if r.failure is not None]
    assert len(records) == 6
    assert put_off
    assert {r.failure.kind for r in put_off} == {"budget"}
    assert f"{len(put_off)} of 6 trials were put off: the budget of 2.50 s" in done.stderr
    done = tune("--resume", **grid)
    assert done.returncode == 0, done.stderr
    assert [r.status for r in latest(records_of(tmp_path))] == ["ok"] * 6


def test_money_that_is_used_up_is_named(tune, tmp_path):
    done = tune("--max-cost", "0.0001", "--price-per-hour", "3600", "--strategy", "grid")
    assert done.returncode in (0, 2), done.stderr
    reasons = {r.failure.reason for r in records_of(tmp_path) if r.failure}
    assert reasons == {"the budget of $0.0001 is used up ($3600 an hour)"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--budget", "soon"), "is no length of time"),
        (("--max-time-per-trial", "0"), "is no length of time"),
        (("--max-trials", "0"), "0 is not in the range"),
        (("--max-time", "0.001s"), "1.00 ms is used up before a trial could begin"),
        (("--strategy", "best"), "best"),
        (("--parallel", "many"), "--parallel many"),
        (("--parallel", "9"), "--parallel 9 needs 9 devices, the machine has 4"),
        (("--server-cpus", "a-b"), "is no list of cores"),
        (("--server-cpus", "9999"), "may not use 9999"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(tune, tmp_path, words, says):
    done = tune(*words)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "starting" not in done.stderr


@pytest.mark.slow
def test_four_servers_side_by_side_have_devices_and_ports_of_their_own(tune, tmp_path):
    probe = tmp_path / "sees.py"
    probe.write_text(
        "import os, sys\n"
        "print('SEES', os.environ.get('CUDA_VISIBLE_DEVICES'), flush=True)\n"
        "from servetune.testing import fake_server\n"
        "sys.argv = [sys.argv[0], *[w for w in sys.argv[1:] if 'tensor' not in w]]\n"
        "fake_server.main()\n"
    )
    done = tune(
        "--parallel",
        "auto",
        command=f"{PYTHON} {probe} --itl-s 0.02 --port {{port}}",
        server_args="tensor_parallel_size=[1];max_num_seqs=[4,5,6,7]",
        client="max_concurrency=[2,3];num_prompts=20",
    )
    assert done.returncode == 0, done.stderr
    records = latest(records_of(tmp_path))
    assert [record.status for record in records] == ["ok"] * 8
    by_server = {}
    for record in records:
        log = (tmp_path / record.server_log).read_text()
        seen = next(line for line in log.splitlines() if line.startswith("SEES"))
        assert seen == f"SEES {record.results['devices'][0]}"
        by_server[record.server_log] = (seen, record.cmd.partition("--port ")[2].split()[0])
    assert len(by_server) == 4
    assert len({seen for seen, _ in by_server.values()}) >= 2
    [reference] = [r for r in records if "beside_neighbours" in r.results]
    check = reference.results["beside_neighbours"]
    assert f"neighbours: {check['words']}" in done.stderr
    assert check["checked"] == (max(check["neighbours"]) > 0)


def test_no_server_gets_a_gpu_that_may_not_be_seen(tune, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    done = tune(client="max_concurrency=[2];num_prompts=8")
    assert done.returncode == 0, done.stderr
    assert "note: servers use the 1 of 4 GPUs that are visible here" in done.stderr
    assert len(records_of(tmp_path)) == 2
    done = tune("--parallel", "2", "--output-json", "other.json")
    assert done.returncode == 2
    assert "--parallel 2 needs 2 devices, the machine has 1" in done.stderr


def test_a_server_works_where_and_with_what_it_is_told_to(tune, tmp_path):
    (tmp_path / "work").mkdir()
    probe = tmp_path / "sees.py"
    probe.write_text(
        "import os\n"
        "print('SEES', os.environ.get('WIDGET'), os.getcwd(), flush=True)\n"
        "from servetune.testing import fake_server\n"
        "fake_server.main()\n"
    )
    grid = {
        "command": f"{PYTHON} {probe} --port {{port}}",
        "server_args": "max_num_seqs=8",
        "client": "max_concurrency=[2];num_prompts=4",
    }
    done = tune("--server-env", "WIDGET=dark blue", "--server-folder", "work", **grid)
    assert done.returncode == 0, done.stderr
    [record] = records_of(tmp_path)
    log = (tmp_path / record.server_log).read_text()
    assert log.startswith(f"SEES dark blue {tmp_path}/work\n")
    assert record.cmd.startswith("env 'WIDGET=dark blue' ")
    assert record.metadata["server_env"] == ["WIDGET=dark blue"]
    done = tune("--resume", "--server-env", "WIDGET=red", **grid)
    assert done.returncode == 2
    assert "the journal was begun with another --server-env: WIDGET=dark blue" in done.stderr


def test_a_plan_of_pairs_runs_two_at_a_time(tune, tmp_path):
    done = tune(
        "--parallel",
        "auto",
        command=SIMULATED,
        server_args="tensor_parallel_size=[2];max_num_seqs=[4,5,6]",
        client="max_concurrency=[2,3];num_prompts=16",
    )
    assert done.returncode == 0, done.stderr
    devices = {json.dumps(r.results["devices"]) for r in records_of(tmp_path)}
    assert devices <= {"[0, 1]", "[2, 3]"}


def test_parts_of_the_start_are_recorded_apart(tune, tmp_path):
    says = tmp_path / "says.py"
    says.write_text(
        "import sys\n"
        "print('Loading weights took 3.25 seconds', flush=True)\n"
        "print('torch.compile takes 7.50 s in total', flush=True)\n"
        "from servetune.testing import fake_server\n"
        "fake_server.main()\n"
    )
    done = tune(command=f"{PYTHON} {says} --port {{port}}", server_args="max_num_seqs=8")
    assert done.returncode == 0, done.stderr
    results = records_of(tmp_path)[0].results
    assert results["startup"]["load_s"] == 3.25
    assert results["startup"]["compile_s"] == 7.5
    assert results["server_ready_s"] > 0
    assert "(load 3.2 s, compile 7.5 s)" in done.stderr


def test_the_next_server_starts_while_the_last_one_stops(tune, tmp_path):
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import pathlib, signal, sys, time\n"
        "from servetune.testing import fake_server\n"
        "starts = pathlib.Path('starts')\n"
        "with starts.open('a') as file:\n"
        "    file.write('x')\n"
        "def stop(*_):\n"
        "    deadline = time.monotonic() + 8\n"
        "    while len(starts.read_text()) < 2 and time.monotonic() < deadline:\n"
        "        time.sleep(0.02)\n"
        "    print('STARTED', len(starts.read_text()), flush=True)\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "fake_server.main()\n"
    )
    done = tune(command=f"{PYTHON} {slow} --port {{port}}", client="num_prompts=4")
    assert done.returncode == 0, done.stderr
    first, second = records_of(tmp_path)
    assert first.results["devices"] != second.results["devices"]
    assert "STARTED 2" in (tmp_path / first.server_log).read_text()
