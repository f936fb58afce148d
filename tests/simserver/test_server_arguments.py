"""From the words behind `vllm serve` to a Plan, and back to the words that servetune writes."""

import pytest

from servetune.engines import engine
from servetune.engines.translate import settings_of
from servetune.errors import InputError, PlanError, UnknownName
from servetune.plan import Plan
from servetune.simserver.server_arguments import parse_server_arguments


def plan_of(text, engine_name="vllm"):
    told = parse_server_arguments(text.split(), engine_name=engine_name)
    return told.plan(told.model)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(model="m"),
        Plan(model="m", tensor_parallel=4, max_num_seqs=8, gpu_memory_fraction=0.85),
        Plan(model="m", prefix_caching=False, chunked_prefill=True, enforce_eager=True),
        Plan(model="m", data_parallel=2, expert_parallel=True, kv_cache_dtype="fp8"),
        Plan(model="m", max_model_len=4096, block_tokens=32, quantization="awq", dtype="half"),
    ],
)
def test_the_command_that_servetune_writes_is_read_as_the_same_plan(plan):
    vllm = engine("vllm")
    words = vllm.command(plan, host="127.0.0.2", port=8123, executable=("vllm",))
    told = parse_server_arguments(words[1:])
    assert (told.model, told.host, told.port) == ("m", "127.0.0.2", 8123)
    assert settings_of(told.plan("m")) == settings_of(plan)
    assert told.without_effect == ()


def test_values_may_stand_behind_a_blank_or_an_equals_sign():
    assert plan_of("m --max-num-seqs 8 -tp 2") == plan_of("serve m --max_num_seqs=8 -tp=2")
    assert plan_of("m -tp 2").tensor_parallel == 2


@pytest.mark.parametrize(("text", "tokens"), [("4k", 4000), ("4K", 4096), ("4096", 4096)])
def test_thousands_may_be_written_as_vllm_reads_them(text, tokens):
    assert plan_of(f"m --max-num-batched-tokens {text}").max_num_batched_tokens == tokens


def test_what_is_said_beside_the_plan_is_kept_apart():
    text = "m --served-model-name a b --tokenizer t --seed 3 --api-key k --disable-log-stats"
    text += " --scheduling-policy priority --async-scheduling"
    told = parse_server_arguments([*text.split(), "--num-gpu-blocks-override", "99"])
    assert told.names == ("a", "b")
    assert (told.tokenizer, told.seed, told.api_key, told.capacity_blocks) == ("t", 3, "k", 99)
    assert told.without_effect == ("--disable-log-stats",)


@pytest.mark.parametrize(
    ("engine_name", "words", "method"),
    [
        (
            "sglang",
            "--speculative-algorithm=NEXTN --speculative-num-steps=3 --speculative-eagle-topk=1",
            "mtp",
        ),
        ("tgi", "--speculate 3", "ngram"),
    ],
)
def test_drafts_are_understood_of_other_engines(engine_name, words, method):
    told = parse_server_arguments(words.split(), engine_name=engine_name)
    plan = told.plan("m")
    assert (plan.draft_tokens, plan.draft_method) == (3, method)
    assert told.without_effect == ()


def test_sglangs_words_are_understood():
    plan = plan_of(
        "--model-path m --tp 2 --max-running-requests 64 --chunked-prefill-size 2048 "
        "--mem-fraction-static 0.8 --context-length 4096 --disable-radix-cache",
        "sglang",
    )
    assert (plan.model, plan.engine, plan.tensor_parallel) == ("m", "sglang", 2)
    assert (plan.max_num_seqs, plan.max_num_batched_tokens, plan.max_model_len) == (64, 2048, 4096)
    assert plan.gpu_memory_fraction == 0.8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("m --max-num-seq 4", "unrecognized arguments: --max-num-seq"),
        ("m n", "unrecognized arguments: n"),
        ("m --max-num-seqs", "argument --max-num-seqs: expected one argument"),
        ("m --max-num-seqs 1.5", "invalid int value: '1.5'"),
        ("m --max-num-seqs 1.5k5", "invalid int value"),
        ("m --gpu-memory-utilization x", "invalid float value: 'x'"),
        ("m --enforce-eager=maybe", "ignored explicit argument 'maybe'"),
        ("m --port 65536", "argument --port: 65536 is no port"),
        ("m --port -1", "argument --port: -1 is no port"),
        ("m --config c.yaml", "not simulated"),
    ],
)
def test_words_that_cannot_be_read_are_refused_as_the_engine_does(text, said):
    with pytest.raises(InputError) as refused:
        parse_server_arguments(text.split())
    assert said in refused.value.message


def test_a_plan_that_cannot_be_is_refused():
    with pytest.raises(PlanError, match="gpu_memory_fraction"):
        plan_of("m --gpu-memory-utilization 1.5")


def test_an_engine_that_nobody_knows_is_refused():
    with pytest.raises(UnknownName):
        parse_server_arguments(["m"], engine_name="ollama")
