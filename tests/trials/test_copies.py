"""Copies of a server: started and ended together, with the load spread over all of them."""

import shlex
import sys

import pytest

import servetune as st
from servetune.errors import EngineDied, InputError, PlanError
from servetune.servers import ServerCopies, ServerOptions, ServerProcess, free_port
from servetune.servers.leftovers import marked_processes
from servetune.store import read_journal

FAKE = (sys.executable, "-m", "servetune.testing.fake_server")
PROGRAM = f"{shlex.join(FAKE)} --port {{port}} --max-num-seqs 1 --ttft-s 0.01"
LOAD = {"input_tokens": 8, "output_tokens": 2, "requests": 24, "concurrency": 4, "warmup": 0}


def copies(folder, count=2, broken=()):
    made = []
    for number in range(count):
        port = free_port()
        words = ("--no-such-option",) if number in broken else ()
        made.append(
            ServerProcess(
                (*FAKE, "--port", str(port), *words),
                log_path=folder / f"{number}.log",
                port=port,
                options=ServerOptions(name="fake", ready_path="/health"),
            )
        )
    return ServerCopies(made)


def test_copies_are_ready_together_and_none_is_left(tmp_path):
    with copies(tmp_path) as servers:
        servers.wait_ready(30)
        assert servers.alive()
        assert servers.unready() is None
        assert servers.poll_death() is None
        assert len({copy.url for copy in servers.copies}) == 2
        running = servers.processes()
    assert len(running) >= 2
    assert not servers.processes()
    assert not servers.alive()


def test_the_death_of_one_ends_the_wait_for_all_and_its_log_is_told(tmp_path):
    with copies(tmp_path, broken=(1,)) as servers, pytest.raises(EngineDied):
        servers.wait_ready(30)
    assert "no-such-option" in servers.log_tail()


def tuned(folder, *words, **options):
    """A study of fake servers, which note each request in a file named by their port."""
    truth = folder / "truth"
    truth.mkdir()
    program = shlex.join([*FAKE, "--truth", f"{truth}/{{port}}.jsonl", *words])
    return st.tune(
        "fake",
        engine="command",
        server_cmd=f"{program} --port {{port}} --max-num-seqs 1 --ttft-s 0.01",
        gpu="L4",
        num_gpus=2,
        processes="1",
        output_dir=folder,
        **LOAD,
        **options,
    )


def test_the_load_is_spread_over_the_copies_in_turn_and_none_is_left(tmp_path):
    """One server, then two copies."""
    found = tuned(tmp_path, server_args="replicas=[1,2]")
    one, two = read_journal(found.artifacts.journal)
    assert [each.status for each in (one, two)] == ["ok", "ok"]
    assert (one.plan.replicas, two.plan.replicas) == (1, 2)
    assert two.config.server_args == {"replicas": 2}
    assert two.config.server_cmd_args == []
    assert two.metadata["gpus_used"] == 2
    assert one.key != two.key
    assert two.cmd.endswith("  # one of 2 copies, each on devices and a port of its own")
    assert "#" not in one.cmd
    logs = {log.name for log in found.artifacts.logs.iterdir()}
    assert logs == {"server-001.log", "server-002.log", "server-002-copy2.log"}
    served = [len(path.read_text().splitlines()) for path in (tmp_path / "truth").iterdir()]
    ready = 1  # each server answers one completion before it counts as ready
    half = LOAD["requests"] // 2
    assert sorted(served) == [half + ready, half + ready, LOAD["requests"] + ready]
    for log in found.artifacts.logs.iterdir():
        assert not marked_processes(log)


def test_the_death_of_a_copy_fails_the_trial_and_ends_the_others(tmp_path):
    died = tuned(tmp_path, "--die-at-request", "7", server_args="replicas=2", retries=0)
    assert died.trials.records[0].failure.kind == "died"
    for log in died.artifacts.logs.iterdir():
        assert not marked_processes(log)


def test_simulated_copies_are_compared_at_equal_gpus(tmp_path):
    found = st.tune(
        "Qwen/Qwen3-4B",
        engine="simulated",
        gpu="L4",
        num_gpus=4,
        server_args="tensor_parallel_size*replicas=[(1,4),(4,1),(1,1)]",
        concurrency=16,
        requests=48,
        output_dir=tmp_path,
    )
    rates = [record.results.output_throughput for record in found.trials.records]
    assert [record.plan.device_count for record in found.trials.records] == [4, 4, 1]
    assert rates[0] > 1.2 * rates[2]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"engine": "external", "url": "http://127.0.0.1:1"}, InputError, "starts none"),
        ({"engine": "command", "server_cmd": PROGRAM, "port": 8123}, InputError, "one port"),
        (
            {"engine": "command", "server_cmd": PROGRAM, "server_args": "replicas=0"},
            PlanError,
            "=0",
        ),
        (
            {"engine": "simulated", "server_args": "replicas=8", "model": "Qwen/Qwen3-4B"},
            PlanError,
            "needs 8 devices",
        ),
    ],
)
def test_copies_that_cannot_be_are_refused(tmp_path, options, error, says):
    request = {"model": "fake", "server_args": "replicas=2", **LOAD, **options}
    with pytest.raises(error, match=says):
        st.tune(**request, gpu="L4", num_gpus=4, output_dir=tmp_path, dry_run=True)
