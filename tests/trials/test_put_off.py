"""Trials that are put off on real servers: while one starts, and of a study side by side."""

import shlex
import sys
import threading

import pytest

from servetune.search import Space, parse_settings
from servetune.store import Artifacts, Order, read_status, write_order
from servetune.trials import (
    AskedTrials,
    ExecutionPolicy,
    Launch,
    RunWatch,
    StudyContext,
    run_asked_trials,
    run_trials,
    trials_of,
)

FAKE = f"{shlex.quote(sys.executable)} -m servetune.testing.fake_server --port {{port}}"


def put_off_once(artifacts, over, stage):
    """Order the first trial that is seen at a stage to be put off, and tell its key."""
    seen = []

    def look():
        while not over.wait(0.05):
            status = read_status(artifacts.status)
            running = status.running if status else ()
            if not seen and running and running[0].stage == stage:
                seen.append(running[0].key)
                order = Order(run=status.run, action="put_off", trial=seen[0])
                write_order(artifacts, order)

    threading.Thread(target=look).start()
    return seen


@pytest.fixture
def study():
    return StudyContext(model="m", engine="vllm", simulated=False, shape=None, node=None)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["starting server", "measuring"])
@pytest.mark.parametrize("searched", [True, False])
def test_a_trial_that_is_put_off_runs_last_and_its_server_starts_for_it(
    tmp_path, study, stage, searched
):
    space = Space(
        server=parse_settings("max_num_seqs=[2,4]", types={}),
        client=parse_settings(
            "num_prompts=30;max_concurrency=1;random_input_len=16;random_output_len=4", types={}
        ),
    )
    groups = list(trials_of(space, study))
    launch = Launch(server_cmd=f"{FAKE} --ttft-s 0.1 --ready-after-s 2")
    artifacts, over, ended, said = Artifacts(tmp_path, "q"), threading.Event(), [], []
    asked = AskedTrials(groups, frozenset(), study, ExecutionPolicy())
    seen = put_off_once(artifacts, over, stage)
    more = {"logs": tmp_path / "logs", "ended": ended.append, "say": said.append}
    try:
        with RunWatch(artifacts, put_off=asked.put_off, say=said.append) as watch:
            if searched:
                run_asked_trials(asked, study, launch, watch=watch, **more)
            else:
                run_trials(groups, study, launch, watch=watch, **more)
    finally:
        over.set()
    first, second = (group[0].key for group in groups)
    assert seen == [first]
    assert [(record.key, record.status) for record in ended] == [(second, "ok"), (first, "ok")]
    starts = [line for line in said if line.startswith("starting ")]
    assert len(starts) == 3
    assert not [line for line in said if "failed" in line]
