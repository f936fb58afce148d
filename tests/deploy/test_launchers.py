"""Each engine's own words for a Plan, and that nothing is lost between them."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rendered import MODEL, has_words, tuned

from servetune.deploy.launchers import (
    deployable_engines,
    filled,
    launcher_of,
    plan_of_words,
    words_of,
)
from servetune.engines import engine as engine_named
from servetune.engines import plan_from_settings
from servetune.errors import DeployError, UnknownName
from servetune.plan.plan import Plan

SAID = {
    "vllm": [
        MODEL, "--host", "0.0.0.0", "--port", "8000", "--tensor-parallel-size=2",
        "--max-num-seqs=96",
        "--max-num-batched-tokens=8192", "--max-model-len=4096", "--gpu-memory-utilization=0.85",
        "--block-size=16", "--dtype=bfloat16", "--quantization=fp8", "--kv-cache-dtype=fp8",
        "--no-enable-prefix-caching", "--enable-chunked-prefill", "--enforce-eager",
        "--served-model-name=Qwen/Qwen3-4B",
    ],
    "sglang": [
        "--model-path", MODEL, "--host", "0.0.0.0", "--port", "8000", "--enable-metrics",
        "--tp-size=2",
        "--max-running-requests=96", "--chunked-prefill-size=8192", "--context-length=4096",
        "--mem-fraction-static=0.85", "--page-size=16", "--dtype=bfloat16", "--quantization=fp8",
        "--kv-cache-dtype=fp8_e4m3", "--disable-radix-cache",
        "--served-model-name=Qwen/Qwen3-4B", "--cuda-graph-backend-decode=disabled",
        "--cuda-graph-backend-prefill=disabled",
    ],
    "tgi": [
        "--model-id", MODEL, "--hostname", "0.0.0.0", "--port", "8000", "--num-shard=2",
        "--max-batch-size=96", "--max-batch-prefill-tokens=8192", "--max-total-tokens=4096",
        "--cuda-memory-fraction=0.85", "--dtype=bfloat16", "--quantize=fp8",
        "--kv-cache-dtype=fp8_e5m2", "--cuda-graphs=0", "--max-concurrent-requests=128",
        "--max-input-tokens=4095", "--max-waiting-tokens=20", "--waiting-served-ratio=0.3",
    ],
    "mlc-llm": [
        f"HF://{MODEL}", "--host", "0.0.0.0", "--port", "8000", "--mode=server",
        "--prefix-cache-mode=disable",
        ("--overrides=tensor_parallel_shards=2;max_num_sequence=96;prefill_chunk_size=8192"
         ";context_window_size=4096;gpu_memory_utilization=0.85"),
    ],
    "tensorrt-llm": [
        MODEL, "--host", "0.0.0.0", "--port", "8000", "--tp_size=2", "--max_batch_size=96",
        "--max_num_tokens=8192", "--max_seq_len=4096", "--enable_chunked_prefill",
        f"--served_model_name={MODEL}",
    ],
    "lmdeploy": [
        MODEL, "--server-name", "0.0.0.0", "--server-port", "8000", "--log-level=INFO", "--tp=2",
        "--max-batch-size=96", "--max-prefill-token-num=8192", "--session-len=4096",
        "--cache-block-seq-len=16", "--dtype=bfloat16", "--eager-mode", "--quant-policy=fp8",
        f"--model-name={MODEL}",
    ],
    "llama.cpp": [
        "--hf-repo", MODEL, "--host", "0.0.0.0", "--port", "8000", "--metrics", "--parallel", "96",
        "--batch-size", "8192", "--no-cache-prompt", "--split-mode", "row", "--ctx-size", "393216",
        "--cache-type-k", "fp8", "--cache-type-v", "fp8", "--alias", MODEL,
        "--tensor-split", "1,1",
    ],
    "transformers": [
        MODEL, "--host", "0.0.0.0", "--port", "8000", "--continuous-batching",
        "--cb-max-batch-tokens=8192", "--cb-block-size=16", "--dtype=bfloat16",
        "--quantization=fp8", "--no-cb-use-cuda-graph",
    ],
    "max": [
        "--model", MODEL, "--host", "0.0.0.0", "--port", "8000", "--max-batch-size=96",
        "--max-batch-input-tokens=8192", "--max-length=4096", "--device-memory-utilization=0.85",
        "--kv-cache-page-size=16", "--quantization-encoding=float8_e4m3fn",
        "--kv-cache-format=fp8", "--no-enable-prefix-caching", "--enable-chunked-prefill",
        "--devices=gpu:0,1", "--no-device-graph-capture", f"--served-model-name={MODEL}",
    ],
    "vllm-neuron": [
        MODEL, "--host", "0.0.0.0", "--port", "8000", "--tensor-parallel-size=2",
        "--max-num-seqs=96", "--max-num-batched-tokens=8192", "--max-model-len=4096",
        "--gpu-memory-utilization=0.85", "--block-size=16", "--dtype=bfloat16",
        "--kv-cache-dtype=fp8", "--no-enable-prefix-caching", "--enable-chunked-prefill",
        "--enforce-eager", f"--served-model-name={MODEL}",
    ],
}  # fmt: skip


def rendered(plan, *, host="0.0.0.0", model=None, concurrency=0, version=""):
    launcher = launcher_of(plan)
    own, notes = filled(
        launcher, plan, served_name=plan.model, concurrency=concurrency, version=version
    )
    _, words, variables = words_of(
        launcher, own, model=model or plan.model, host=host, port=8000, version=version or None
    )
    return own, list(words), variables, notes


@pytest.mark.parametrize("engine", deployable_engines())
def test_each_engine_gets_everything_in_its_own_words(engine):
    _, words, variables, _ = rendered(tuned(engine))
    assert words == SAID[engine]
    assert variables == ({"PREFIX_CACHING": "0"} if engine == "tgi" else {})


def test_the_simulated_engine_ships_as_vllm():
    own, words, _, _ = rendered(tuned("simulated"))
    assert words == SAID["vllm"]
    assert own.engine == "vllm"


def test_prompts_in_one_piece_keep_their_budget_on_sglang():
    plan = tuned("sglang", chunked_prefill=False)
    _, words, _, _ = rendered(plan)
    assert "--chunked-prefill-size=-1" in words
    assert "--max-prefill-tokens=8192" in words
    assert plan_of_words(engine_named("sglang"), words).max_num_batched_tokens == 8192


def test_tgi_lets_in_as_many_as_were_measured():
    _, words, _, _ = rendered(tuned("tgi"), concurrency=300)
    assert "--max-concurrent-requests=300" in words


def test_tgi_refuses_prompts_longer_than_it_can_compute_in_one_piece_and_says_so():
    for chunked, version in ((False, "3.3.6"), (None, "3.3.6"), (True, "2.4.0")):
        plan = tuned("tgi", max_num_batched_tokens=2048, chunked_prefill=chunked)
        _, words, _, notes = rendered(plan, version=version)
        assert "--max-input-tokens=2048" in words
        assert any("above 2048 are refused" in note for note in notes)


def test_tgi_3_cuts_prompts_and_takes_them_longer_than_a_step():
    plan = tuned("tgi", max_num_batched_tokens=2048, chunked_prefill=True)
    own, words, variables, _ = rendered(plan)
    assert "--max-input-tokens=4095" in words
    assert variables == {"PREFIX_CACHING": "0", "PREFILL_CHUNKING": "1"}
    assert plan_of_words(engine_named("tgi"), words, variables).chunked_prefill is True
    assert own.chunked_prefill is True


def test_what_tgi_works_out_itself_is_reported_and_not_written():
    plan = Plan(model=MODEL, engine="tgi")
    own, words, variables, notes = rendered(plan)
    assert own.max_num_batched_tokens is own.max_model_len is own.prefix_caching is None
    assert not [word for word in words if word.startswith(("--max-batch", "--max-total"))]
    assert variables == {}
    assert any("works out max_num_batched_tokens" in note for note in notes)
    assert "--cuda-graphs=1,2,4,8,16,32" in words


@pytest.mark.parametrize(
    ("engine", "fields", "message"),
    [
        ("tgi", {"data_parallel": 2}, "no setting for data_parallel"),
        ("tgi", {"expert_parallel": True}, "no setting for expert_parallel"),
        ("sglang", {"expert_parallel": True, "tensor_parallel": 1}, "the plan has one"),
        ("vllm", {"extra": (("port", 1),)}, "decided by the deployment"),
        ("vllm", {"extra": (("api_key", "x"),)}, "is a credential"),
        ("vllm", {"extra": (("revision", "hf_" + "a1" * 17),)}, "is a credential"),
        ("vllm", {"extra": (("x y", 1),)}, "not the name of a setting"),
        ("vllm", {"quantization": "fp8\nrm -rf"}, "holds what a command line cannot"),
        ("vllm", {"extra": (("max_num_seqs", 4),)}, "says max_num_seqs=96"),
        ("sglang", {"extra": (("disable_radix_cache", 5),)}, "says both disable_radix_cache"),
        ("llamacpp", {}, "unknown engine"),
    ],
)
def test_what_cannot_be_expressed_is_refused_before_anything_is_written(engine, fields, message):
    with pytest.raises((DeployError, UnknownName), match=message) as caught:
        rendered(tuned(engine, **fields))
    assert "a1a1" not in f"{caught.value}{getattr(caught.value, 'hint', '')}"


def test_a_negative_extra_is_the_switch_turned_off():
    _, words, _, _ = rendered(
        tuned("vllm", prefix_caching=None, extra=(("no-async-scheduling", True),))
    )
    assert "--no-async-scheduling" in words


counts = st.one_of(st.none(), st.integers(1, 1 << 20))
switch = st.one_of(st.none(), st.booleans())
word = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True).filter(
    lambda text: text not in {"true", "false", "inf", "nan"}
)
#: What shells, YAML, systemd and Compose each take for something else.
odd = st.text(alphabet="ab \"'\\$%{}()[]#:&*!|>,=-~`;@", min_size=1, max_size=12).map(
    lambda text: f"x{text}x"
)
extras = st.dictionaries(
    word.filter(lambda name: not name.startswith("no_")).map(lambda name: f"x_{name}"),
    st.one_of(st.integers(), st.booleans(), word, odd, st.just('{"a": [1, "b"]}')),
    max_size=4,
)


@st.composite
def plans(draw, engine):
    fields = {
        "tensor_parallel": draw(st.integers(1, 16)),
        "replicas": draw(st.integers(1, 4)),
        "max_num_seqs": draw(counts),
        "max_num_batched_tokens": draw(counts),
        "max_model_len": draw(counts),
        "gpu_memory_fraction": draw(st.one_of(st.none(), st.floats(0.05, 1.0))),
        "dtype": draw(st.sampled_from([None, "auto", "bfloat16", "half"])),
        "kv_cache_dtype": draw(st.sampled_from([None, "auto", "fp8"])),
        "quantization": draw(st.sampled_from([None, "fp8", "awq"])),
        "prefix_caching": draw(switch),
        "enforce_eager": draw(switch),
        "chunked_prefill": draw(switch),
        "extra": tuple(sorted(draw(extras).items())),
    }
    if engine != "tgi":
        fields |= {
            "data_parallel": draw(st.integers(1, 4)),
            "pipeline_parallel": draw(st.integers(1, 4)),
            "block_tokens": draw(counts),
            "expert_parallel": draw(st.booleans()) and fields["tensor_parallel"] > 1,
        }
    methods = {"vllm": ["ngram"], "sglang": [None, "mtp", "ngram"], "tgi": ["ngram"]}
    if engine in methods and draw(st.booleans()):
        method = draw(st.sampled_from(methods[engine]))
        fields |= {"draft_tokens": draw(st.integers(1, 8)), "draft_method": method}
    if engine not in ("vllm", "sglang", "tgi"):  # these say what they lack in words of their own
        fields = {name: value for name, value in fields.items() if has_words(engine, name, value)}
    if engine == "llama.cpp" and fields["tensor_parallel"] > 1:  # rows or layers, not both
        fields["pipeline_parallel"] = 1
    return Plan(model=MODEL, engine=engine, **fields)


@pytest.mark.parametrize("engine", deployable_engines())
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_words_read_back_are_the_plan(engine, data):
    plan = data.draw(plans(engine))
    own, words, variables, _ = rendered(plan)
    back = plan_of_words(engine_named(engine), words, variables)
    assert msgspec.structs.replace(back, replicas=plan.replicas) == own
    # Filling invents nothing about what was chosen, but for words that the engine lacks.
    lacking = {"engine", "extra", "block_tokens"} if engine == "tgi" else {"extra"}
    for field in plan.__struct_fields__:
        chosen = getattr(plan, field)
        if field not in lacking and chosen not in (None, "auto") and field != "kv_cache_dtype":
            assert getattr(own, field) == chosen


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_filling_twice_changes_nothing(data):
    engine = data.draw(st.sampled_from(list(deployable_engines())))
    plan = data.draw(plans(engine))
    launcher = engine_named(engine)
    once, _ = filled(launcher, plan, served_name=MODEL)
    extra = tuple((k, v) for k, v in once.extra if k != launcher.shipping.name_setting)
    twice, _ = filled(launcher, msgspec.structs.replace(once, extra=extra), served_name=MODEL)
    assert twice == once


@pytest.mark.parametrize(
    ("engine", "extra"),
    [
        ("vllm", {"speculative_config": '{"method": "eagle3", "model": "a/b", '
                                        '"num_speculative_tokens": 3}'}),
        ("sglang", {"speculative_algorithm": "EAGLE3", "speculative_num_steps": 3,
                    "speculative_eagle_topk": 1, "speculative_draft_model_path": "a/b"}),
    ],
)  # fmt: skip
def test_the_checkpoint_of_a_head_that_drafts_reaches_the_command(engine, extra):
    plan = plan_from_settings(engine, MODEL, extra)
    own, words, variables, _ = rendered(plan)
    assert plan_of_words(engine_named(engine), words, variables) == own
    assert (own.draft_tokens, own.draft_method) == (3, "eagle3")
    assert extra.items() <= dict(own.extra).items()


def test_words_that_name_no_model_are_refused():
    with pytest.raises(DeployError, match="names no model"):
        plan_of_words(engine_named("sglang"), ["--tp-size=2"])
    with pytest.raises(DeployError, match="wrong value"):
        plan_of_words(engine_named("vllm"), [MODEL, "--max-num-seqs=many"])
