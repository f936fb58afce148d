import itertools
import re

import msgspec
import pytest

from servetune.errors import InputError, PlanError, ServetuneError
from servetune.models import load_shape
from servetune.perf.roofline import predict_runs
from servetune.perf.roofline.drafting import tokens_per_step
from servetune.perf.roofline.run_formulas import RunPoint
from servetune.prediction.assumptions import assumed
from servetune.prediction.rows import run_of, stored_as

ROW = {
    "model": "Qwen/Qwen3-32B",
    "gpu": "h100_sxm",
    "isl": "1024",
    "osl": "128",
    "concurrency": "4",
}


def catalogued(model):
    return load_shape(model, catalogue_first=True)


@pytest.mark.parametrize(
    ("model", "weights", "experts", "stored"),
    [
        ("Qwen/Qwen3-8B", "bf16", "", "none"),
        ("Qwen/Qwen3-8B", "fp8", "", "fp8"),
        ("Qwen/Qwen3-8B", "nvfp4", "", "nvfp4"),
        ("Qwen/Qwen3-30B-A3B", "fp8", "", "fp8_block"),
        ("Qwen/Qwen3-30B-A3B", "nvfp4", "nvfp4", "nvfp4@feed_forward"),
        ("deepseek-ai/DeepSeek-R1", "fp8", "", "fp8_block"),
        ("deepseek-ai/DeepSeek-R1", "nvfp4", "nvfp4", "nvfp4@feed_forward"),
        ("deepseek-ai/DeepSeek-R1", "bf16", "", "none"),
    ],
)
def test_a_row_is_priced_in_the_precision_that_ran(model, weights, experts, stored):
    shape = load_shape(model, catalogue_first=True)
    assert stored_as(shape, weights, experts).quantization == stored


@pytest.mark.parametrize("weights", ["bf16", "nvfp4", "mxfp4", ""])
def test_gpt_oss_keeps_its_own_four_bits_whatever_a_table_calls_them(weights):
    shape = load_shape("openai/gpt-oss-120b", catalogue_first=True)
    assert stored_as(shape, weights, "mxfp4") == shape


@pytest.mark.parametrize(
    ("word", "stored"),
    [
        ("AWQ", "awq"),
        ("gptq", "awq"),
        ("w8a8", "int8"),
        ("FP8-dynamic", "fp8"),
        ("w8a8 fp8", "fp8"),
        ("modelopt_fp4", "nvfp4"),
        ("none", "none"),
    ],
)
def test_precisions_are_known_by_the_words_of_other_tools(word, stored):
    row = ROW | {"precision_weights": word}
    assert run_of(row, catalogued).shape.quantization == stored


@pytest.mark.parametrize("engine", ["trtllm", "TRT-LLM", "tensorrt-llm", "TensorRT LLM", "trt"])
def test_one_engine_has_many_spellings(engine):
    row = ROW | {"engine": engine}
    assert run_of(row, catalogued).engine == "trtllm"


def priced(users: int) -> float:
    row = {
        "model": "deepseek-ai/DeepSeek-R1",
        "engine": "sglang",
        "gpu": "b200_sxm",
        "precision_weights": "fp8",
        "isl": "1024",
        "osl": "1024",
        "concurrency": str(users),
        "tp": "8",
    }
    return predict_runs([run_of(row, catalogued)])[0].point.output_tokens_per_s


def test_one_user_more_changes_a_row_by_about_one_users_tokens():
    assert priced(65) == pytest.approx(priced(64), rel=1.5 / 64)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("users", [4, 64, 128, 512])
def test_a_row_is_predicted_as_it_stands_where_no_benchmark_is_named(engine, users):
    row = {
        "model": "deepseek-ai/DeepSeek-R1",
        "engine": engine,
        "engine_version": "1.2.0rc6.post3",
        "gpu": "b200_sxm",
        "precision_weights": "nvfp4",
        "isl": "1024",
        "osl": "1024",
        "concurrency": str(users),
        "tp": "8",
    }
    run = run_of(row, catalogued)
    plan = run.plan
    assert (plan.tensor_parallel, plan.data_parallel, plan.draft_tokens) == (8, 1, None)
    assert (plan.max_num_batched_tokens, plan.gpu_memory_fraction) == (None, None)
    # TensorRT-LLM follows its checkpoints, which ask for a cache of eight bits.
    cache = "fp8" if engine == "trtllm" else None
    assert (plan.kv_cache_dtype, run.admission_delay_steps) == (cache, 0.0)


def test_rows_priced_together_are_priced_as_each_alone():
    """Runs of one call share work, memory and lengths, and networks of other sizes pad arrays."""
    settings = {
        "model": ("Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "openai/gpt-oss-120b"),
        "engine": ("vllm", "sglang", "trtllm"),
        "tp": ("1", "2"),
        "pp": ("1", "2"),
        "protocol": ("", "static", "offline"),
        "concurrency": ("3", "200"),
    }
    fixed = {"gpu": "h100_sxm", "isl": "900", "osl": "120", "precision_weights": "fp8"}
    rows = [
        fixed | dict(zip(settings, values, strict=True))
        for values in itertools.product(*settings.values())
    ]
    runs = [run_of(row, catalogued) for row in rows]
    together = predict_runs(runs)
    for run, found in list(zip(runs, together, strict=True))[::5]:
        (alone,) = predict_runs([run])
        assert found.misfit == alone.misfit
        for name in RunPoint.__struct_fields__:
            assert getattr(found.point, name) == pytest.approx(
                getattr(alone.point, name), rel=1e-12
            )


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"engine_version": "latest"}, "latest is not read as a release"),
        ({"engine": "trtllm", "gpu": "MI300X"}, "trtllm does not run on devices of AMD"),
        ({"protocol": "static", "requests": "99"}, "requests 99 is not read: all 4 of a static"),
        ({"engine": "mlc_llm"}, "no run of mlc-llm was measured"),
        ({"burstiness": "0.5"}, "burstiness is not read: requests of a closed run"),
        ({"rate": "40"}, "rate is not read: requests of a closed run"),
        ({"max_concurrency": "9"}, "max_concurrency is not read: requests of a closed run"),
        (
            {"protocol": "open", "rate": "1", "burstiness": "0.5", "max_concurrency": "4"},
            "burstiness is not read: a client with max_concurrency",
        ),
        (
            {"protocol": "open", "rate": "1", "burstiness": "0.5", "engine": "tgi"},
            "burstiness is not read: an engine that gathers",
        ),
    ],
)
def test_what_a_row_is_taken_for_is_said(columns, words):
    row = ROW | {"engine": "vllm"} | columns
    assert words in assumed(row, run_of(row, catalogued))


@pytest.mark.parametrize(
    "columns",
    [
        {"rate": "inf", "burstiness": "1.0", "max_concurrency": "4"},  # as vLLM's client says it
        {"engine": "tgi", "engine_version": "TGIS 2023-10"},  # a fork that is described
    ],
)
def test_what_a_row_says_as_it_is_taken_needs_no_words(columns):
    row = ROW | {"engine": "vllm"} | columns
    assert assumed(row, run_of(row, catalogued)) == ""


@pytest.mark.parametrize(
    ("model", "weights", "experts", "stored"),
    [
        ("Qwen/Qwen3-30B-A3B", "bf16", "awq", "awq@experts"),
        ("Qwen/Qwen3-30B-A3B", "fp8", "nvfp4", "nvfp4@experts+fp8"),
        ("Qwen/Qwen3-30B-A3B", "awq", "bf16", "none@experts+awq"),
        ("Qwen/Qwen3-30B-A3B", "fp8", "fp8_block", "fp8_block"),
        ("openai/gpt-oss-120b", "bf16", "mxfp4", "mxfp4@feed_forward"),  # as it is published
        ("openai/gpt-oss-120b", "fp8", "mxfp4", "mxfp4@experts+fp8"),
        ("deepseek-ai/DeepSeek-V3", "bf16", "fp8", "fp8_block@experts"),
        ("moonshotai/Kimi-K2-Thinking", "fp8", "awq", "int4_g32@experts+fp8"),
        ("Qwen/Qwen3-30B-A3B", "int8", "w8a16", "int8w@experts+int8"),
        ("Qwen/Qwen3-8B", "bf16", "mxfp4", "none"),  # it has no experts
    ],
)
def test_experts_may_be_stored_apart_from_the_rest(model, weights, experts, stored):
    columns = {"model": model, "precision_weights": weights, "precision_moe": experts, "tp": "8"}
    run = run_of(ROW | columns | {"gpu": "H200"}, catalogued)
    assert run.shape.quantization == stored
    (found,) = predict_runs([run])
    assert found.point.tpot_ms > 0


OFFLINE = {"engine": "trtllm", "protocol": "offline", "model": "deepseek-ai/DeepSeek-R1", "tp": "4"}


@pytest.mark.parametrize(
    ("columns", "ranks"),
    [
        ({"gpu": "B200", "tp": "8"}, 8),
        ({"gpu": "B200", "tp": "8", "server_args": "enable_attention_dp=false"}, 1),
        ({"gpu": "B200"}, 1),  # whole attention on each of four would leave no room
    ],
)
def test_offline_runs_divide_attention_by_users_where_they_can(columns, ranks):
    row = ROW | OFFLINE | columns
    run = run_of(row, catalogued)
    assert run.plan.data_parallel == ranks
    assert ("own tables of highest throughput" in assumed(row, run)) == (ranks > 1)
    assert predict_runs([run])[0].misfit is None


@pytest.mark.parametrize(("word", "warmed"), [("", True), ("true", True), ("0", False)])
def test_a_row_may_say_that_its_server_was_cold(word, warmed):
    run = run_of(ROW | {"engine": "vllm", "protocol": "closed", "warmed": word}, catalogued)
    assert run.warmed is warmed
    with pytest.raises(ServetuneError, match="warmed must be true or false, got 'maybe'"):
        run_of(ROW | {"warmed": "maybe"}, catalogued)


def test_a_past_release_may_have_settings_that_are_not_known_here():
    told = {"server_args": "num_scheduler_steps=8;max_num_seqs=16", "engine": "vllm"}
    row = ROW | told | {"engine_version": "0.6.3"}
    run = run_of(row, catalogued)
    assert run.plan.max_num_seqs == 16
    assert "not priced: num_scheduler_steps" in assumed(row, run)
    with pytest.raises(PlanError, match="has no setting num_scheduler_steps") as refused:
        run_of(ROW | told, catalogued)
    assert "state the engine_version that has it" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("told", "assumes"),
    [
        ('speculative_config={"num_speculative_tokens": 3}', "of 3 drafted tokens are accepted"),
        ("disable_cuda_graph=true", ""),
        ("speculative_algorithm=EAGLE3", "not priced: speculative_algorithm"),
    ],
)
def test_settings_of_drafts_and_graphs_are_priced_or_named(told, assumes):
    engine = "vllm" if "config" in told else "sglang"
    row = ROW | {"engine": engine, "server_args": told}
    run = run_of(row, catalogued)
    plain = run_of(ROW | {"engine": engine}, catalogued)
    assert (run.plan == msgspec.structs.replace(plain.plan, extra=run.plan.extra)) == (
        assumes.startswith("not priced")
    )
    assert assumes in assumed(row, run)
    assert bool(assumed(row, run)) == bool(assumes)


@pytest.mark.parametrize(
    ("engine", "setting"),
    [("sglang", "disable_overlap_schedule"), ("trtllm", "disable_overlap_scheduler")],
)
def test_steps_that_are_not_composed_ahead_are_priced(engine, setting):
    row = ROW | {
        "engine": engine,
        "protocol": "open",
        "rate": "2",
        "server_args": f"{setting}=true",
    }
    told, silent = run_of(row, catalogued), run_of(row | {"server_args": ""}, catalogued)
    assert "not priced" not in assumed(row, told)
    slower, plain = predict_runs([told, silent])
    assert slower.point.tpot_ms > plain.point.tpot_ms + 0.3


def test_a_slip_in_a_past_release_is_guessed_and_another_engines_word_refused():
    past = ROW | {"engine": "vllm", "engine_version": "0.6.3"}
    row = past | {"server_args": "max_num_seq=16"}
    assert "max_num_seq (did you mean max_num_seqs)" in assumed(row, run_of(row, catalogued))
    with pytest.raises(PlanError, match="tp_size") as refused:
        run_of(past | {"server_args": "tp_size=2"}, catalogued)
    assert "calls it tensor_parallel_size" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"engine_version": "99.1"}, "release 99.1 is not described yet"),
        ({"protocol": "open", "rate": "1", "concurrency": ""}, "a run of 1,000 requests"),
        (
            {"model": "Qwen/Qwen3-30B-A3B", "tp": "2", "moe_ep": "3"},
            "experts divided over all 2 devices of a copy, not 3",
        ),
        (
            {"model": "Qwen/Qwen3-30B-A3B", "moe_ep": "8"},
            "moe_ep 8 is not read: a copy has one device",
        ),
        ({"engine_version": "99"}, "99 is not read as a release"),
        ({"engine": "llama.cpp"}, "no run of llama.cpp was measured"),
    ],
)
def test_what_a_row_says_and_cannot_be_is_named(columns, words):
    row = ROW | {"engine": "vllm"} | columns
    assert words in assumed(row, run_of(row, catalogued))


def test_an_open_loop_with_a_limit_needs_no_number_in_flight():
    row = ROW | {"protocol": "open", "rate": "1", "concurrency": "", "max_concurrency": "4"}
    run = run_of(row, catalogued)
    assert (run.concurrency, run.capped, run.request_count) == (4, True, 1000)


def test_a_longest_sequence_below_a_rows_request_is_refused():
    row = ROW | {"engine": "vllm", "server_args": "max_model_len=100"}
    with pytest.raises(ServetuneError, match="max_model_len 100 is less than a request"):
        run_of(row, catalogued)


@pytest.mark.parametrize(
    ("model", "stored"),
    [
        ("Qwen/Qwen3-30B-A3B", "fp8_block"),  # its publisher's own checkpoint
        ("zai-org/GLM-4.5-Air", "fp8"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "fp8"),  # none is known
    ],
)
def test_fp8_of_experts_is_stored_as_the_publishers_checkpoint(model, stored):
    assert stored_as(catalogued(model), "fp8").quantization == stored


def test_a_row_states_settings_of_its_server_in_the_engines_words():
    plan = run_of({**ROW, "server_args": "max_num_seqs=16;enforce_eager=true"}, catalogued).plan
    assert (plan.max_num_seqs, plan.enforce_eager) == (16, True)
    served = run_of(
        {**ROW, "engine": "sglang", "server_args": "mem_fraction_static=0.8"}, catalogued
    )
    assert served.plan.gpu_memory_fraction == 0.8


@pytest.mark.parametrize(
    ("columns", "degrees", "places"),
    [
        ({"tp": "8", "dp": "8", "server_args": "enable_dp_attention=true"}, (1, 8), 128),
        ({"tp": "1", "dp": "8", "server_args": "enable_dp_attention=true"}, (1, 8), 128),
        ({"tp": "8", "dp": "4", "server_args": "enable_dp_attention=true"}, (2, 4), 256),
        ({"tp": "8", "server_args": "enable_dp_attention=true"}, (8, 1), 1024),  # one rank
        (
            {
                "tp": "8",
                "dp": "8",
                "server_args": "enable_dp_attention=true;max_running_requests=256",
            },
            (1, 8),
            32,
        ),
        ({"tp": "2", "dp": "4", "server_args": "max_running_requests=256"}, (2, 4), 256),
        (
            {"engine": "trtllm", "tp": "4", "server_args": "enable_attention_dp=true"},
            (1, 4),
            256,
        ),
        ({"engine": "trtllm", "tp": "4"}, (4, 1), 1024),
    ],
)
def test_attention_of_several_ranks_counts_devices_as_the_engine_does(columns, degrees, places):
    row = {**ROW, "model": "Qwen/Qwen3-30B-A3B", "gpu": "b200", "concurrency": "1024"}
    plan = run_of(row | {"engine": "sglang"} | columns, catalogued).plan
    assert (plan.tensor_parallel, plan.data_parallel) == degrees
    assert plan.expert_parallel is (
        "attention" in columns.get("server_args", "") and degrees[1] > 1
    )
    assert plan.max_num_seqs == places


def test_lengths_from_one_token_on_are_said_as_others_mean_equal_ones_by_it():
    row = {**ROW, "engine": "vllm", "protocol": "closed"}
    ratios = [{"range_ratio": text} for text in ("0", "0.0", "0.5", "")]
    said = [assumed(row | ratio, run_of(row | ratio, catalogued)) for ratio in ratios]
    assert [text.count("equal ones have 1") for text in said] == [1, 1, 0, 0]


def test_ranks_that_do_not_divide_the_devices_are_refused():
    row = {**ROW, "model": "Qwen/Qwen3-30B-A3B", "engine": "sglang", "tp": "8", "dp": "3"}
    with pytest.raises(ServetuneError, match="tp 8 is no multiple of dp 3"):
        run_of(row | {"server_args": "enable_dp_attention=true"}, catalogued)


def test_ranks_of_a_network_without_experts_are_a_plain_split():
    row = {**ROW, "engine": "sglang", "tp": "8", "dp": "8"}
    run = run_of(row | {"server_args": "enable_dp_attention=true"}, catalogued)
    assert (run.plan.tensor_parallel, run.plan.data_parallel) == (8, 1)
    said = assumed(row | {"server_args": "enable_dp_attention=true"}, run)
    assert (
        said
        == "enable_dp_attention is priced for networks of experts alone: taken as a plain split"
    )


def test_what_a_row_says_of_its_ranks_is_not_assumed():
    for columns in (
        {"engine": "sglang", "tp": "8", "dp": "8", "server_args": "enable_dp_attention=true"},
        {"engine": "trtllm", "tp": "8", "server_args": "enable_attention_dp=true"},
    ):
        row = {**ROW, "model": "Qwen/Qwen3-30B-A3B", **columns}
        assert assumed(row, run_of(row, catalogued)) == ""


def test_sglang_takes_few_sequences_of_a_network_with_compressed_attention():
    row = {**ROW, "model": "deepseek-ai/DeepSeek-V4-Flash", "gpu": "b200", "concurrency": "1024"}
    ranks = {"engine": "sglang", "tp": "4", "dp": "4", "server_args": "enable_dp_attention=true"}
    assert run_of(row | ranks, catalogued).plan.max_num_seqs == 64
    assert run_of(row | {"engine": "sglang", "tp": "4"}, catalogued).plan.max_num_seqs == 256
    copies = {"engine": "sglang", "tp": "4", "dp": "2"}
    assert run_of(row | copies, catalogued).plan.max_num_seqs == 256  # each has its own limit
    assert run_of(row | {"engine": "vllm", "tp": "4"}, catalogued).plan.max_num_seqs == 1024


def test_stated_settings_lengthen_what_they_lengthen():
    crowd = {**ROW, "concurrency": "64"}
    plain, few = (priced_row(crowd | {"server_args": text}) for text in ("", "max_num_seqs=16"))
    assert few.ttft_ms > 2 * plain.ttft_ms


@pytest.mark.parametrize(
    ("engine", "text", "message"),
    [
        ("vllm", "max_num_seqs=[16,32]", "max_num_seqs has 2 values"),
        ("vllm", "tensor_parallel_size=1", "tensor_parallel_size is not read from server_args"),
        ("vllm", "api_srver_count=2", "api_srver_count"),
    ],
)
def test_settings_that_a_row_cannot_state_are_refused(engine, text, message):
    with pytest.raises(ServetuneError, match=re.escape(message)):
        run_of({**ROW, "engine": engine, "server_args": text}, catalogued)


L4_ROW = {"gpu": "l4", "osl": "256", "concurrency": "32", "protocol": "closed"}


@pytest.mark.parametrize(
    "columns",
    [
        {"model": "Qwen/Qwen3-8B", "engine": "sglang"},
        {"model": "Qwen/Qwen3-8B", "engine": "sglang", "engine_version": "0.5.14"},
        {"model": "Qwen/Qwen3.5-27B", "gpu": "rtx_5090", "precision_weights": "fp8"},
    ],
)
def test_longer_prompts_make_no_server_faster(columns):
    """The share of memory rose at once where one request did not fit: 16 to 165 tokens/s."""
    rows = [ROW | L4_ROW | columns | {"isl": str(isl)} for isl in (256, 512, 1024, 1536, 4096)]
    rates = [priced_row(row).output_tokens_per_s for row in rows]
    assert all(later < earlier for earlier, later in itertools.pairwise(rates))


def test_users_beyond_the_useful_places_change_no_plan():
    """Each took memory before: that of a hundred held no weights, and that of ninety did."""
    awq = {"model": "Kwaipilot/KAT-Coder-V2.5-Dev", "precision_weights": "awq", "engine": "vllm"}
    row = ROW | L4_ROW | awq
    few, more, many = (
        run_of(row | {"concurrency": str(users)}, catalogued) for users in (10, 90, 1000)
    )
    assert few.plan == more.plan == many.plan
    assert predict_runs([many])[0].misfit is None
    batch = {"model": "MiniMaxAI/MiniMax-M2.5", "gpu": "mi355x", "precision_weights": "fp8"}
    batch |= {"engine": "vllm", "engine_version": "0.5.4", "tp": "1", "protocol": "static"}
    lengths = [
        run_of(ROW | batch | {"concurrency": str(users)}, catalogued).plan.max_model_len
        for users in (900, 920, 2000)
    ]
    assert len(set(lengths)) == 1


def test_a_share_that_a_row_states_is_not_assumed():
    row = ROW | {"engine": "vllm", "server_args": "gpu_memory_utilization=0.95"}
    assert assumed(row, run_of(row, catalogued)) == ""
    tight = ROW | L4_ROW | {"model": "Qwen/Qwen3-8B", "engine": "sglang"}
    assert "engine's share of memory 0.72" in assumed(tight, run_of(tight, catalogued))


_CHAIN = "speculative_algorithm=EAGLE;speculative_num_steps=3;speculative_eagle_topk=1"


@pytest.mark.parametrize("told", [_CHAIN, "speculative_algorithm=EAGLE3"])
def test_sglang_takes_few_sequences_with_drafts_unless_it_is_asked_for_more(told):
    row = ROW | {"engine": "sglang", "concurrency": "128", "gpu": "h200_sxm"}
    assert run_of(row | {"server_args": told}, catalogued).plan.max_num_seqs == 48
    more = f"{told};max_running_requests=96"
    assert run_of(row | {"server_args": more}, catalogued).plan.max_num_seqs == 96
    assert run_of(row, catalogued).plan.max_num_seqs == 128


def test_tokens_gained_per_step_set_the_acceptance_of_drafts():
    row = ROW | {"engine": "sglang", "server_args": _CHAIN}

    def read(length):
        return run_of(row | {"accept_length": length}, catalogued)

    assert [tokens_per_step(read(length).plan) for length in ("1", "2.5", "4")] == pytest.approx(
        [1.0, 2.5, 4.0]
    )
    assert read("").plan.draft_acceptance_fraction is None
    stated = row | {"accept_length": "2.5"}
    assert assumed(stated, run_of(stated, catalogued)) == ""
    slow, fast = (predict_runs([read(length)])[0].point for length in ("1.5", "3"))
    assert slow.tpot_ms == pytest.approx(2 * fast.tpot_ms, rel=0.1)  # prompts among the steps


@pytest.mark.parametrize(
    ("told", "length", "message"),
    [
        ("", "2.5", "accept_length is 2.5, but the row drafts no tokens"),
        ("speculative_algorithm=EAGLE3", "2.5", "drafts no tokens that are priced"),
        (_CHAIN, "0.9", "accept_length must be from 1 to 4 with 3 drafted tokens, got 0.9"),
        (_CHAIN, "4.1", "accept_length must be from 1 to 4"),
        (_CHAIN, "many", "accept_length must be a number"),
    ],
)
def test_tokens_gained_per_step_that_cannot_be_are_refused(told, length, message):
    row = ROW | {"engine": "sglang", "server_args": told, "accept_length": length}
    with pytest.raises(InputError, match=re.escape(message)):
        run_of(row, catalogued)


def priced_row(row):
    return predict_runs([run_of(row, catalogued)])[0].point
