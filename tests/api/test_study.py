"""Studies from Python: the same trials and files as the command makes."""

import asyncio
import json
import re
import shlex
import signal
import socket
import sys
import threading
from contextlib import nullcontext

import msgspec
import pytest

import servetune as st
from servetune.api import inputs, study
from servetune.api.request import checked, command_words, read_config
from servetune.api.study import TrialDone
from servetune.api.study_setup import study_setup
from servetune.clock import VirtualClock
from servetune.errors import InputError, PlanError, StoreError
from servetune.store import Failure, Results, TrialConfig, TrialRecord, read_journal
from servetune.trials import AskedTrials, Budget, ExecutionPolicy
from servetune.workload import LoadOptions

MODEL = "Qwen/Qwen3-4B"
SWEEP = {
    "engine": "simulated",
    "gpu": "L4",
    "num_gpus": 2,
    "server_args": "tensor_parallel_size=[1,2]",
    "client_args": "num_prompts=20;random_input_len=64;random_output_len=16",
    "concurrency": [2, 4],
    "constraints": "ttft:p99<=10s",
}
WORDS = (
    *("tune", "--model", MODEL, "--engine", "simulated", "--gpu", "L4", "--num-gpus", "2"),
    *("--server-args", "tensor_parallel_size=[1,2]", "-c", "2,4"),
    *("--client-args", "num_prompts=20;random_input_len=64;random_output_len=16"),
    *("--constraints", "ttft:p99<=10s"),
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    events = []
    found = st.tune(MODEL, **SWEEP, output_json=str(folder / "q.json"), on_progress=events.append)
    return found, events


def test_a_study_gives_typed_trials_files_and_a_pick(finished):
    found, _ = finished
    assert len(found.trials) == 4
    assert {trial.config.client_args["max_concurrency"] for trial in found.trials} == {2, 4}
    assert (found.status, found.interrupted, found.planned, found.job) == (0, False, (), "")
    assert found.trials.records == tuple(read_journal(found.artifacts.journal))
    assert found.trials.records == st.read(str(found.artifacts.journal)).records
    best = max(found.trials, key=lambda record: record.results["output_throughput"])
    assert found.pick().record == best
    assert found.pick().feasible
    assert json.loads(found.artifacts.summary.read_text())
    assert found.artifacts.dashboard.exists()


def test_progress_has_each_trial_and_the_best_so_far(finished):
    found, events = finished
    assert [(event.done, event.total) for event in events] == [(n, 4) for n in (1, 2, 3, 4)]
    assert tuple(event.record for event in events) == found.trials.records
    rates = [event.record.results["output_throughput"] for event in events]
    best = [event.best.results["output_throughput"] for event in events]
    assert best == [max(rates[: n + 1]) for n in range(4)]
    assert str(events[0]).startswith("[1/4] simulated tensor_parallel_size=1")


def test_the_command_makes_the_same_journal_and_its_configuration_repeats_it(
    finished, called, tmp_path
):
    found, _ = finished
    journal = found.artifacts.journal.read_bytes()
    done = called(*WORDS, "--output-json", "q.json")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "q.jsonl").read_bytes() == journal
    again = called("tune", "--config", "q.toml", "--output-json", "again.json")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again.jsonl").read_bytes() == journal
    first, second = (
        checked(st.Study, read_config(tmp_path / name, st.Study))
        for name in ("q.toml", "again.toml")
    )
    assert first == msgspec.structs.replace(second, files=first.files)
    assert str(second.files.output_json) == "again.json"


def test_the_configuration_of_a_resumed_study_is_that_of_the_whole(finished, tmp_path):
    found, _ = finished
    (tmp_path / "q.jsonl").write_bytes(found.artifacts.journal.read_bytes())
    place = tmp_path / "q.json"
    resumed = st.tune(MODEL, **SWEEP, output_json=place, resume=True, retry_failed=True)
    assert resumed.trials.records == found.trials.records
    kept = checked(st.Study, read_config(tmp_path / "q.toml", st.Study))
    assert not kept.files.resume
    assert not kept.files.retry_failed


def test_a_configuration_that_a_user_wrote_is_left_as_it_is(called, tmp_path):
    text = f'[tune]\nmodel = "{MODEL}"\nengine = "simulated"\ngpu = "L4"\nclient-args = '
    text += '"num_prompts=2;max_concurrency=1"\noutput-json = "mine.json"\n'
    (tmp_path / "mine.toml").write_text(text)
    done = called("tune", "--config", "mine.toml")
    assert done.returncode == 0, done.stderr
    assert len(read_journal(tmp_path / "mine.jsonl")) == 1
    assert (tmp_path / "mine.toml").read_text() == text


def test_a_dry_run_plans_every_server_and_writes_nothing(called, tmp_path):
    found = st.tune(MODEL, **SWEEP, output_dir=tmp_path / "r", dry_run=True)
    assert [server.server_args["tensor_parallel_size"] for server in found.planned] == [1, 2]
    assert [load["max_concurrency"] for load in found.planned[0].loads] == [2, 4]
    assert "--tensor-parallel-size=2" in found.planned[1].command
    assert (len(found.trials), found.status) == (0, 0)
    printed = called(*WORDS, "--dry-run")
    assert printed.stdout == f"{found}\n"
    assert "# 4 trials on 2 server configurations; nothing was simulated" in printed.stdout
    assert "results would go to results/tune.json" in printed.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_study_runs_in_a_thread_of_an_asyncio_program(finished, tmp_path):
    async def program():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        found = await asyncio.to_thread(st.tune, MODEL, **SWEEP, output_json=tmp_path / "q.json")
        ticking.cancel()
        return found, ticks

    found, ticks = asyncio.run(program())
    assert found.artifacts.journal.read_bytes() == finished[0].artifacts.journal.read_bytes()
    assert ticks > 1, "the loop went on meanwhile"


def test_a_study_runs_inside_a_loop_as_in_a_notebook(finished, tmp_path):
    async def cell():
        return st.tune(MODEL, **SWEEP, output_json=str(tmp_path / "q.json"))

    found = asyncio.run(cell())
    assert found.artifacts.journal.read_bytes() == finished[0].artifacts.journal.read_bytes()


def test_real_servers_are_loaded_from_a_thread_and_inside_a_loop(tmp_path):
    program = f"{shlex.quote(sys.executable)} -m servetune.testing.fake_server --port {{port}}"
    options = {"engine": "command", "server_cmd": program, "gpu": "L4", "concurrency": 2}
    load = {"input_tokens": "8", "output_tokens": "4", "requests": 6}

    async def notebook():
        thread = await asyncio.to_thread(
            st.tune, "fake", **options, **load, output_dir=tmp_path / "a"
        )
        return thread, st.tune("fake", **options, **load, output_dir=tmp_path / "b")

    for found in asyncio.run(notebook()):
        [trial] = found.trials
        assert (found.status, trial.results["completed"]) == (0, 6), trial.failure


def test_an_interrupted_study_keeps_its_trials_and_can_be_resumed(finished, tmp_path):
    def stop(event):
        if event.done == 2:
            raise KeyboardInterrupt

    place = tmp_path / "q.json"
    found = st.tune(MODEL, **SWEEP, output_json=place, on_progress=stop)
    assert (found.interrupted, found.status, len(found.trials)) == (True, 130, 2)
    rest = []
    whole = st.tune(MODEL, **SWEEP, output_json=place, resume=True, on_progress=rest.append)
    assert [event.done for event in rest] == [3, 4]
    assert rest[0].best is not None
    assert whole.artifacts.journal.read_bytes() == finished[0].artifacts.journal.read_bytes()


def test_a_callback_that_raises_ends_the_study_and_keeps_its_trials(finished, tmp_path):
    calls = []

    def broken(event):
        calls.append(event.done)
        if event.done == 2:
            raise KeyError("my own mistake")

    place = tmp_path / "q.json"
    with pytest.raises(InputError, match="on_progress raised KeyError: 'my own mistake'") as caught:
        st.tune(MODEL, **SWEEP, output_json=place, on_progress=broken)
    assert isinstance(caught.value.__cause__, KeyError)
    assert (
        caught.value.hint
        == f"2 of 4 trials are safe in {tmp_path / 'q.jsonl'}; resume=True goes on"
    )
    assert calls == [1, 2]
    assert len(st.read(place)) == 2, "the summary has what ended"
    whole = st.tune(MODEL, **SWEEP, output_json=place, resume=True)
    assert whole.artifacts.journal.read_bytes() == finished[0].artifacts.journal.read_bytes()


def test_what_is_no_function_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(InputError, match="on_progress is no function"):
        st.tune(MODEL, **SWEEP, output_dir=tmp_path, on_progress=3)
    assert list(tmp_path.iterdir()) == []


def test_a_callback_that_raises_leaves_no_server(tmp_path):
    program = f"{shlex.quote(sys.executable)} -m servetune.testing.fake_server --port {{port}}"
    calls = []

    def broken(event):
        calls.append(event)
        raise RuntimeError("stop")

    with pytest.raises(InputError, match="on_progress raised RuntimeError: stop"):
        st.tune(
            "fake", engine="command", server_cmd=program, server_args={"a": [1, 2, 3]}, gpu="L4",
            num_gpus=2, parallel=2, concurrency=2, client_args={"seed": [1, 2]}, input_tokens=8,
            output_tokens=4, requests=6, output_dir=tmp_path, on_progress=broken,
        )  # fmt: skip
    [event] = calls
    [record] = [each for each in st.read(tmp_path / "tune.jsonl") if each.key == event.record.key]
    port = int(re.search(r"--port (\d+)", record.cmd)[1])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_sigterm_stops_a_study_of_the_main_thread_alone(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    handlers = []

    def look(_event):
        handlers.append(signal.getsignal(signal.SIGTERM))

    st.tune(MODEL, **SWEEP, output_json=tmp_path / "a.json", on_progress=look)
    assert before not in handlers
    handlers.clear()
    options = {**SWEEP, "output_json": tmp_path / "b.json", "on_progress": look}
    thread = threading.Thread(target=st.tune, args=(MODEL,), kwargs=options)
    thread.start()
    thread.join()
    assert set(handlers) == {before} == {signal.getsignal(signal.SIGTERM)}


def test_the_status_says_what_became_of_the_trials(tmp_path):
    missed = st.tune(
        MODEL, **{**SWEEP, "constraints": "ttft:p99<=1us"}, output_json=tmp_path / "a.json"
    )
    assert (missed.status, missed.pick().feasible) == (1, False)
    ok = missed.trials.records[0]

    def status(*kinds):
        records = tuple(
            msgspec.structs.replace(ok, status="failed", failure=Failure(kind=kind, reason=""))
            for kind in kinds
        )
        return msgspec.structs.replace(missed, trials=st.Trials(records=records)).status

    assert status("does_not_fit") == 2
    assert status("budget", "does_not_fit") == 2
    assert status("does_not_fit", "server_died") == 3


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"client_args": "max_concurrency=3"}, "--concurrency and the client argument"),
        ({"retry_failed": True}, "--retry-failed needs --resume"),
        ({"concurrency": 0}, "concurrency"),
        ({"max_time_per_trial": "soon"}, "soon"),
        ({"max_trials": 0}, "max_trials"),
        ({"strategy": "tpe", "parallel": 2}, "strategy tpe chooses one trial after the other"),
        ({"strategy": "random", "order": "random"}, "--order random is for a grid"),
        ({"extra_body": "1", "temperature": 1}, "extra_body is not a JSON object"),
        (
            {"job": "slurm", "instance": None, "gpu": "L4", "cluster": "auto"},
            "--job uses one machine",
        ),
    ],
)
def test_options_that_contradict_are_refused_before_anything_is_written(tmp_path, changed, says):
    with pytest.raises(InputError, match=says):
        st.tune(MODEL, **{**SWEEP, "output_dir": tmp_path / "r", **changed})
    assert list(tmp_path.iterdir()) == []


def test_results_of_another_study_are_not_written_over(finished):
    with pytest.raises(StoreError, match="exists already"):
        st.tune(MODEL, **SWEEP, output_json=finished[0].artifacts.summary)


def test_one_number_of_users_and_one_text_stand_for_lists():
    one = checked(st.Study, {"model": MODEL, "concurrency": 8, "server_args": "a=1"})
    assert (one.concurrency, one.server_args) == ((8,), ("a=1",))


def test_settings_as_a_dict_are_the_study_of_their_text(tmp_path):
    files = {"dry_run": True, "output_dir": tmp_path}
    load = {"num_prompts": 20, "random_input_len": 64, "random_output_len": 16}
    server = {"tensor_parallel_size": [1, 2]}
    of_text = st.tune(MODEL, **SWEEP, **files)
    given = SWEEP | {"server_args": server, "client_args": load, "concurrency": "2,4"}
    assert st.tune(MODEL, **given, **files).planned == of_text.planned
    with pytest.raises(InputError, match="tensor_parallel_size takes an integer, got 'two'"):
        st.tune(MODEL, **SWEEP | {"server_args": {"tensor_parallel_size": "two"}}, **files)


def test_the_same_words_of_load_mean_the_same_requests_as_for_bench():
    words = {
        "input_tokens": "kind=normal,mean=200,std=150",
        "output_tokens": "16",
        "requests": 50,
        "rate": 4.0,
        "arrivals": "gamma",
        "seed": 3,
        "turns": "2",
        "warmup": 2,
    }
    study = checked(
        st.Study, {"model": MODEL, "engine": "simulated", "gpu": "L4", "concurrency": 8, **words}
    )
    [[trial]] = study_setup(study).groups
    assert trial.workload == LoadOptions(concurrency=8, **words).to_workload(MODEL)
    assert trial.client_args["num_prompts"] == 50
    assert trial.client_args["max_concurrency"] == 8


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"requests": 9}, "num_prompts=8"),
        ({"rate": 2.0}, "request_rate=3"),
        ({"input_tokens": "9"}, "random_input_len=8"),
        ({"shared_prefix_tokens": 9}, "random_prefix_len=8"),
        ({"workload": "chat"}, "dataset_name=random"),
        ({"seed": 2}, "seed=3"),
    ],
)
def test_an_option_and_a_client_argument_that_decide_the_same_are_refused(options, argument):
    name = argument.partition("=")[0]
    with pytest.raises(InputError, match=f"and the client argument {name} are the same"):
        st.tune(MODEL, engine="simulated", gpu="L4", client_args=argument, **options)


def test_the_load_of_a_trial_on_a_cluster_has_the_one_core_of_its_placement():
    options = {"model": MODEL, "gpu": "L4", "cluster": "auto", "dry_run": True}
    for chosen, processes in (({}, 1), ({"processes": 3}, 3), ({"cluster": None}, "auto")):
        study = checked(st.Study, {**options, "engine": "command", "server_cmd": "x", **chosen})
        assert study_setup(study).launch.processes == processes


def test_a_job_runs_the_same_study(called, tmp_path):
    job = ("--job", "slurm", "--job-folder", "/shared/q", "--budget", "2h")
    printed = called(*WORDS, *job, "--no-early-stop")
    assert printed.returncode == 0, printed.stderr
    assert "pass it to sbatch" in printed.stderr
    found = st.tune(
        MODEL, **SWEEP, early_stop=False, budget="2h", job="slurm", job_folder="/shared/q"
    )
    assert printed.stdout == f"{found}\n" == found.job
    assert "#SBATCH" in found.job
    [line] = [line for line in found.job.splitlines() if "servetune tune" in line]
    for words in ("--concurrency 2 --concurrency 4", "--no-early-stop", "--budget 2h", "--resume"):
        assert words in line
    assert "--job" not in line


def test_a_job_is_refused_where_no_gpu_is_named_or_here(monkeypatch):
    monkeypatch.setattr(inputs, "detect", lambda: None)
    with pytest.raises(InputError, match="a job needs to know its GPUs"):
        st.tune(MODEL, engine="external", url="http://127.0.0.1:1", job="slurm")


def test_the_words_of_a_request_make_the_same_request(called, tmp_path):
    request = checked(st.Study, {"model": MODEL, **SWEEP, "early_stop": False, "rest_s": 1.5})
    words = command_words(request)
    assert words[:2] == ("servetune", "tune")
    assert called(*words[1:], "--dry-run", "--write-config", "w.toml").returncode == 0
    kept = checked(st.Study, read_config(tmp_path / "w.toml", st.Study))
    dry = msgspec.structs.replace(request.files, dry_run=True)
    assert kept == msgspec.structs.replace(request, files=dry)


def test_a_line_of_progress_names_what_is_swept_the_best_and_the_time_left():
    best = ended_trial("best", {"tp": 2, "gpu_memory": 0.9}, 300.0)
    now = ended_trial("now", {"tp": 1, "gpu_memory": 0.9}, 200.0)
    event = TrialDone(record=now, done=2, total=9, best=best, left_s=125.0, swept=frozenset({"tp"}))
    first, second = str(event).splitlines()
    assert first.startswith("[2/9] tp=1: 200 output tokens/s")
    assert second == "  about 2 min 5 s left; best so far: tp=2 with 300 output tokens/s"
    assert len(str(msgspec.structs.replace(event, left_s=3.0)).splitlines()) == 1


def ended_trial(key, server, rate):
    return TrialRecord(
        key=key,
        config=TrialConfig(server_args=server, client_args={}),
        results=Results({"output_throughput": rate, "completed": 5, "failed": 0}),
    )


@pytest.mark.parametrize("engine", ["simulated", "vllm"])
def test_a_storage_that_the_checkpoint_lacks_is_said_before_anything_starts(tmp_path, engine):
    request = {
        "engine": engine,
        "gpu": "L4",
        "concurrency": [2],
        "dry_run": True,
        "output_json": tmp_path / "q.json",
    }
    found = st.tune("Qwen/Qwen3-8B", server_args="quantization=[awq,fp8]", **request)
    narrow, fp8 = found.planned
    assert "Qwen/Qwen3-8B-AWQ" in narrow.problems[0]
    assert fp8.problems == ()
    assert "#   cannot run: vLLM cannot make awq weights of Qwen/Qwen3-8B" in str(found)
    with pytest.raises(PlanError, match="cannot make awq"):
        st.tune("Qwen/Qwen3-8B", server_args="quantization=awq", **request)


WIDE = {
    **SWEEP,
    "server_args": "tensor_parallel_size=[1,2];max_num_seqs=[8,16,32]",
    "concurrency": [2, 4, 16],
}


def searched(folder, strategy, max_trials, **more):
    if strategy in {"tpe", "nsga2"}:
        pytest.importorskip("optuna", reason="the extra optuna is not installed")
    return st.tune(
        MODEL,
        **WIDE,
        output_json=folder / "q.json",
        strategy=strategy,
        max_trials=max_trials,
        order_seed=3,
        **more,
    )


@pytest.mark.parametrize("strategy", ["grid", "random", "guided", "tpe", "nsga2"])
def test_a_search_that_was_interrupted_goes_on_to_the_same_trials(tmp_path, strategy):
    whole = searched(tmp_path, strategy, 14)
    done = len(whole.trials)
    assert (whole.search.strategy, whole.search.trial_count) == (strategy, done)
    assert whole.search.total_count == 18
    assert done == 14 or (
        strategy == "guided" and "no other trial is better" in whole.search.stopped
    )
    lines = (tmp_path / "q.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "q.jsonl").write_bytes(b"".join(lines[: done // 2]) + lines[done // 2][:40])
    resumed = searched(tmp_path, strategy, 14, resume=True)
    assert resumed.trials.records == whole.trials.records
    assert resumed.search == whole.search


def test_the_result_says_how_the_search_ended(called, tmp_path):
    done = called(*WORDS, "--measure", "1", "--output-json", "q.json")
    assert done.returncode == 0, done.stderr
    assert "strategy guided: 1 of 4 trials were run; " in done.stdout
    assert " is within 2% of the best with a probability of " in done.stdout
    found = st.tune(MODEL, **SWEEP, strategy="random", output_json=tmp_path / "r.json")
    assert "strategy random (seed 0): 4 of 4 trials were run; every trial was run" in str(found)
    assert "by predictions alone" in str(found)


def test_a_guided_search_in_which_nothing_can_hold_is_refused_and_says_what_binds(tmp_path):
    limits = "ttft:p99<=1ms;itl<=1s"
    with pytest.raises(InputError, match="no trial is likely to hold ttft:p99<=1ms") as refused:
        st.tune(
            MODEL,
            **{**SWEEP, "constraints": limits},
            strategy="guided",
            output_json=tmp_path / "q.json",
        )
    assert "times its limit" in refused.value.message
    assert list(tmp_path.iterdir()) == []


def test_a_strategy_whose_package_is_missing_is_refused_before_anything_starts(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match="needs Optuna"):
        st.tune(MODEL, **SWEEP, strategy="tpe", output_json=tmp_path / "q.json")
    assert list(tmp_path.iterdir()) == []


def test_servers_side_by_side_run_the_trials_that_a_random_search_would_ask_for(tmp_path):
    one, many = (
        searched(tmp_path / parallel, "random", 5, parallel=parallel) for parallel in ("1", "auto")
    )
    assert {record.key for record in many.trials} == {record.key for record in one.trials}
    assert many.search == one.search
    again = searched(tmp_path / "auto", "random", 9, parallel="auto", resume=True)
    assert again.search.trial_count == len(again.trials) == 9


@pytest.mark.parametrize(
    ("left_s", "ready_s", "refused"),
    [(80.0, 90.0, True), (100.0, 90.0, False), (80.0, None, False)],
)
def test_less_time_than_every_start_took_is_refused(finished, left_s, ready_s, refused):
    found, _ = finished
    [one, *_] = found.trials.records
    one = msgspec.structs.replace(one, results=one.results.with_fields(server_ready_s=ready_s))
    setup = study_setup(checked(st.Study, {"model": MODEL, **SWEEP}))
    policy = ExecutionPolicy(budget=Budget(limit_s=left_s, clock=VirtualClock()))
    asked = AskedTrials(setup.groups, frozenset(), setup.context, policy)
    for record in found.trials.records[1:]:
        asked.tell(record)
    with pytest.raises(InputError, match="no start of a") if refused else nullcontext():
        study._require_time_for_a_trial(policy, [one], asked)
    asked.tell(one)  # nothing is left that would need a start
    study._require_time_for_a_trial(policy, [one], asked)
