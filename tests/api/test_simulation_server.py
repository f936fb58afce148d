"""A server of simulated answers, as a request: its options, its machine, what it refuses."""

import msgspec
import pytest

import servetune as st
from servetune.api import simulation_server
from servetune.api.request import checked, read_config, to_toml
from servetune.errors import InputError, NotSimulated, PlanError

MODEL = "Qwen/Qwen3-4B"


@pytest.fixture
def served(monkeypatch):
    """Servers that were to be started, each with its address and its service."""
    started = []

    async def serve(server, host, port):
        started.append((host, port, server))

    monkeypatch.setattr(simulation_server, "_serve", serve)
    return started


def test_a_model_alone_is_served_here_on_the_engines_port(served, caplog):
    with caplog.at_level("INFO", "servetune"):
        st.serve_simulation(MODEL, gpu="L4", speed=4.0)
    ((host, port, _),) = served
    assert (host, port) == ("127.0.0.1", 8000)
    assert "SIMULATED engine: Qwen/Qwen3-4B as TP1 on 1x L4, 4x real time" in caplog.text


@pytest.mark.parametrize(
    ("options", "machine"),
    [
        ({"replicas": 3}, "on 3x L4"),
        ({"replicas": 2, "prefill_replicas": 1}, "on 3x L4"),
        ({"replicas": 2, "num_gpus": 4}, "on 4x L4"),
    ],
)
def test_a_machine_has_as_many_gpus_as_the_plan_needs_or_as_are_named(
    served, caplog, options, machine
):
    with caplog.at_level("INFO", "servetune"):
        st.serve_simulation(MODEL, gpu="L4", **options)
    assert machine in caplog.text


def test_words_are_the_engines_and_faults_have_their_seed(served, caplog):
    request = checked(
        st.SimulationServer,
        {"words": ("serve", MODEL, "--port", "0", "--seed=7"), "gpu": "L4", "error_fraction": 0.5},
    )
    with caplog.at_level("INFO", "servetune"):
        st.serve_simulation(request)
    ((_, port, _),) = served
    assert port == 0
    assert "with faults on demand: error_fraction=0.5" in caplog.text
    st.serve_simulation(msgspec.structs.replace(request, words=(MODEL, "--seed=8")))
    draws = [[one._draws.next() for _ in range(20)] for _, _, one in served]
    assert draws[0] != draws[1]


@pytest.mark.parametrize(
    ("words", "options", "error", "said"),
    [
        ((), {}, InputError, "no model is named"),
        ((MODEL,), {"kv_link": "node"}, InputError, "--kv-link needs separate copies"),
        ((MODEL, "--max-model-len", "100000"), {}, PlanError, "max_model_len 100000"),
        ((MODEL, "-tp", "3"), {}, PlanError, "tensor_parallel"),
        ((MODEL, "--max-num-seq", "3"), {}, InputError, "unrecognized arguments: --max-num-seq"),
        (
            (MODEL,),
            {"error_fraction": 0.6, "stall_fraction": 0.6},
            InputError,
            "more than 1 together",
        ),
    ],
)
def test_what_cannot_be_served_is_refused(served, words, options, error, said):
    with pytest.raises(error, match=said) as refused:
        st.serve_simulation(checked(st.SimulationServer, {"words": words, "gpu": "L4", **options}))
    assert not isinstance(refused.value, NotSimulated)
    assert served == []


def test_a_configuration_file_repeats_the_server(tmp_path):
    values = {"words": (MODEL, "--port", "9"), "gpu": "L4", "speed": 2.0, "stall_fraction": 0.1}
    request = checked(st.SimulationServer, values)
    (tmp_path / "c.toml").write_text(to_toml(request))
    kept = read_config(tmp_path / "c.toml", st.SimulationServer)
    assert checked(st.SimulationServer, kept) == request
