"""MLC LLM: members of one option, there and back, and what its log and metrics tell."""

import pytest

from servetune.deploy.launchers import plan_of_words
from servetune.engines import engine
from servetune.engines.metrics import read_engine
from servetune.errors import CannotRender, PlanError
from servetune.loadgen.sampler import parse_metrics
from servetune.plan import Plan

#: Lines of pull request 2128 of mlc-ai/mlc-llm, with the colours of a terminal.
LOG = (
    "[2024-04-12 21:44:47] INFO engine_base.py:432: The actual engine mode is "
    '"\x1b[1mserver\x1b[0m". So max batch size is 80, max KV cache token capacity is 16308, '
    "prefill chunk size is 4096.\n"
)
NO_MEMORY = (
    "Insufficient GPU memory error: The available single GPU memory is 6144.000 MB, which is "
    "less than the sum of model weight size (12852.5 MB) and temporary buffer size (560.0 MB).\n"
)


@pytest.fixture
def mlc():
    return engine("mlc-llm")


def test_members_of_overrides_stand_in_one_word(mlc):
    plan = Plan(model="org/m", engine="mlc-llm", max_num_seqs=64, extra=(("opt", "O3"),))
    words = mlc.command(plan, host="h", port=1)
    assert words == (
        *("mlc_llm", "serve", "HF://org/m", "--host", "h", "--port", "1", "--mode=server"),
        "--overrides=tensor_parallel_shards=1;max_num_sequence=64;opt=O3",
    )
    back = plan_of_words(mlc, words[2:])
    assert (back.model, back.max_num_seqs) == ("org/m", 64)
    assert dict(back.extra) == {"mode": "server", "opt": "O3"}


def test_a_folder_is_no_hub_id(mlc, tmp_path):
    assert mlc.model_words(str(tmp_path)) == (str(tmp_path),)
    assert mlc.model_words("HF://org/m") == ("HF://org/m",)


def test_its_log_tells_what_the_server_settled(mlc):
    reading = mlc.read_log(LOG)
    assert reading.kv_cache_tokens == 16308
    assert reading.taken == {"max_num_sequence": 80, "prefill_chunk_size": 4096}
    plan = Plan(model="m", engine="mlc-llm", max_num_seqs=128)
    assert mlc.differences(plan, reading.taken)["max_num_sequence"] == (128, 80)


def test_too_little_memory_has_its_cause(mlc):
    cause = mlc.explain(NO_MEMORY, 1)
    assert cause.kind == "no_cache_memory"
    assert "6144.000 MB" in cause.message


def test_its_token_counters_are_read():
    reading = read_engine(parse_metrics("prompt_tokens_sum\t512\ncompletion_tokens_sum\t64.0\n"))
    assert (reading.engine, reading.prompt_tokens, reading.output_tokens) == ("mlc-llm", 512, 64)


def test_what_it_has_no_setting_for_is_refused_with_a_way_on(mlc):
    with pytest.raises(PlanError, match="no setting for block_tokens") as caught:
        mlc.command(Plan(model="m", engine="mlc-llm", block_tokens=32), host="h", port=1)
    assert "16 tokens" in caught.value.hint


def test_a_semicolon_cannot_hide_a_second_member(mlc):
    plan = Plan(model="m", engine="mlc-llm", extra=(("opt", "O3;max_num_sequence=1"),))
    with pytest.raises(CannotRender, match="semicolon"):
        mlc.shipping.fill(plan, 0, "")
