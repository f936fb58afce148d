import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.deploy.containers import (
    CONTAINERS,
    container_named,
    containers_of,
    environment,
    parse_environment,
    usual_container,
)
from servetune.deploy.images import choose_image, images
from servetune.engines import resolved
from servetune.engines.container import Image
from servetune.errors import DeployError, InputError, UnknownName
from servetune.hardware.device import Device
from servetune.models import load_shape
from servetune.plan.plan import Plan, Setting

MODEL = "Qwen/Qwen3-4B"
GOLDEN = Path(__file__).parent.parent / "golden" / "sagemaker" / "environments.json"
L4 = Device(
    name="L4", vendor="nvidia", architecture="ada", memory_bytes=23034 * 2**20,
    memory_bytes_per_s=300e9, bf16_flops=121e12,
)  # fmt: skip
QWEN = load_shape(MODEL, catalogue_first=True)
EVERY_IMAGE = [(name, image.tag) for name in CONTAINERS for image in images(name)]
NEWEST = {name: choose_image(name, None)[0] for name in CONTAINERS}
OLD_LMI = choose_image("lmi", "0.10.2")[0]


def rendered(
    container: str, plan: Plan, *, image: Image | None = None, **more: Any
) -> dict[str, str]:
    return environment(
        container_named(container),
        plan,
        image=image or NEWEST[container],
        model_source=more.pop("model_source", plan.model),
        **more,
    )


def plan(**fields: Any) -> Plan:
    return Plan(model=MODEL, **fields)


def plan_for(container: str, **fields: Any) -> Plan:
    """A plan of the engine that the container runs."""
    return plan(engine=container_named(container).dialect, **fields)


def filled(container: str, original: Plan, *, concurrency: int = 0) -> Plan:
    return container_named(container).fill(original, L4, concurrency, "")[0]


def tuned(container: str) -> Plan:
    """Every field that a default could change is chosen, as a sweep would choose it."""
    chosen: dict[str, Any] = {
        "tensor_parallel": 2, "max_num_seqs": 96, "max_num_batched_tokens": 8192,
        "max_model_len": 8192, "gpu_memory_fraction": 0.85, "dtype": "bfloat16",
        "kv_cache_dtype": "fp8_e5m2" if container == "tgi" else "fp8", "quantization": "fp8",
        "prefix_caching": True, "enforce_eager": False,
    }  # fmt: skip
    if container != "tgi":
        chosen |= {"chunked_prefill": True, "block_tokens": 16}
    return filled(container, plan_for(container, **chosen), concurrency=128)


# What each container calls each thing. These spellings are the promise of this room.


def test_lmi_spells_a_plan_in_its_own_names() -> None:
    env = rendered(
        "lmi",
        plan(
            tensor_parallel=2,
            replicas=2,
            max_num_seqs=128,
            max_num_batched_tokens=8192,
            max_model_len=4096,
            gpu_memory_fraction=0.85,
            quantization="fp8",
            kv_cache_dtype="fp8",
            prefix_caching=False,
            enforce_eager=True,
            extra=(("cpu_offload_gb", 4), ("seed", 7)),
        ),
        concurrency=2000,
        load_timeout_s=900,
    )
    assert env == {
        "HF_MODEL_ID": MODEL,
        "OPTION_ASYNC_MODE": "true",
        "OPTION_ROLLING_BATCH": "disable",
        "OPTION_ENTRYPOINT": "djl_python.lmi_vllm.vllm_async_service",
        "OPTION_SERVED_MODEL_NAME": MODEL,
        "OPTION_TENSOR_PARALLEL_DEGREE": "2",
        "OPTION_MAX_ROLLING_BATCH_SIZE": "128",
        "OPTION_MAX_ROLLING_BATCH_PREFILL_TOKENS": "8192",
        "OPTION_MAX_MODEL_LEN": "4096",
        "OPTION_GPU_MEMORY_UTILIZATION": "0.85",
        "OPTION_QUANTIZE": "fp8",
        "OPTION_KV_CACHE_DTYPE": "fp8",
        "OPTION_ENABLE_PREFIX_CACHING": "false",
        "OPTION_ENFORCE_EAGER": "true",
        "OPTION_CPU_OFFLOAD_GB_PER_GPU": "4",
        "OPTION_SEED": "7",
        "SERVING_MIN_WORKERS": "2",
        "SERVING_MAX_WORKERS": "2",
        "SERVING_JOB_QUEUE_SIZE": "2000",
        "OPTION_MODEL_LOADING_TIMEOUT": "900",
    }


def test_the_vllm_container_spells_a_plan_as_flags() -> None:
    env = rendered(
        "vllm",
        plan(
            tensor_parallel=2,
            replicas=2,
            expert_parallel=True,
            max_num_seqs=128,
            prefix_caching=False,
            chunked_prefill=True,
            enforce_eager=False,
            extra=(("hf_overrides", '{"rope_theta": 1000000}'), ("seed", 7)),
        ),
    )
    assert env == {
        "SM_VLLM_MODEL": MODEL,
        "SM_VLLM_SERVED_MODEL_NAME": MODEL,
        "SM_VLLM_TENSOR_PARALLEL_SIZE": "2",
        "SM_VLLM_DATA_PARALLEL_SIZE": "2",
        "SM_VLLM_ENABLE_EXPERT_PARALLEL": "true",
        "SM_VLLM_MAX_NUM_SEQS": "128",
        "SM_VLLM_NO_ENABLE_PREFIX_CACHING": "true",
        "SM_VLLM_ENABLE_CHUNKED_PREFILL": "true",
        "SM_VLLM_NO_ENFORCE_EAGER": "true",
        "SM_VLLM_HF_OVERRIDES": '{"rope_theta": 1000000}',
        "SM_VLLM_SEED": "7",
    }


def test_the_vllm_container_never_gets_false_which_it_would_drop() -> None:
    env = rendered("vllm", plan(prefix_caching=False, extra=(("async_scheduling", False),)))
    assert "false" not in env.values()
    assert env["SM_VLLM_NO_ASYNC_SCHEDULING"] == "true"


def test_hugging_faces_edition_is_kept_from_adding_what_was_not_measured() -> None:
    env = rendered("hf-vllm", plan(tensor_parallel=2, prefix_caching=False))
    assert env == {
        "SM_VLLM_MODEL": MODEL,
        "HF_ENABLE_OPTIMIZATIONS": "0",
        "HF_ENABLE_LMCACHE": "0",
        "SM_VLLM_SERVED_MODEL_NAME": MODEL,
        "SM_VLLM_TENSOR_PARALLEL_SIZE": "2",
        "SM_VLLM_NO_ENABLE_PREFIX_CACHING": "true",
    }


def test_the_sglang_container_spells_a_plan_as_flags_without_negatives() -> None:
    chosen = plan_for(
        "sglang",
        tensor_parallel=2,
        replicas=2,
        max_num_seqs=128,
        max_num_batched_tokens=4096,
        max_model_len=8192,
        gpu_memory_fraction=0.85,
        kv_cache_dtype="fp8",
        expert_parallel=True,
        prefix_caching=False,
        chunked_prefill=True,
        enforce_eager=True,
        extra=(("schedule_policy", "lpm"), ("enable_mixed_chunk", False)),
    )
    assert rendered("sglang", filled("sglang", chosen)) == {
        "SM_SGLANG_MODEL_PATH": MODEL,
        "SM_SGLANG_SERVED_MODEL_NAME": MODEL,
        "SM_SGLANG_TP_SIZE": "2",
        "SM_SGLANG_DP_SIZE": "2",
        "SM_SGLANG_EP_SIZE": "2",
        "SM_SGLANG_MAX_RUNNING_REQUESTS": "128",
        "SM_SGLANG_CHUNKED_PREFILL_SIZE": "4096",
        "SM_SGLANG_CONTEXT_LENGTH": "8192",
        "SM_SGLANG_MEM_FRACTION_STATIC": "0.85",
        "SM_SGLANG_KV_CACHE_DTYPE": "fp8_e4m3",
        "SM_SGLANG_DISABLE_RADIX_CACHE": "true",
        "SM_SGLANG_CUDA_GRAPH_BACKEND_DECODE": "disabled",
        "SM_SGLANG_CUDA_GRAPH_BACKEND_PREFILL": "disabled",
        "SM_SGLANG_ENABLE_METRICS": "true",
        "SM_SGLANG_SCHEDULE_POLICY": "lpm",
    }


def test_prompts_in_one_piece_are_said_to_sglang_by_the_size_of_a_chunk() -> None:
    whole = filled(
        "sglang",
        plan_for(
            "sglang", max_num_seqs=8, max_num_batched_tokens=4096, gpu_memory_fraction=0.8,
            chunked_prefill=False,
        ),
    )  # fmt: skip
    env = rendered("sglang", whole)
    assert env["SM_SGLANG_CHUNKED_PREFILL_SIZE"] == "-1"
    assert env["SM_SGLANG_MAX_PREFILL_TOKENS"] == "4096"
    assert parse_environment("sglang", env) == whole


def test_what_sglang_would_decide_by_the_device_is_not_made_up() -> None:
    with pytest.raises(InputError, match="leaves max_num_seqs, gpu_memory_fraction open") as caught:
        filled("sglang", plan_for("sglang", max_num_batched_tokens=2048))
    assert "resolved" in caught.value.hint


def test_a_false_that_sglang_would_never_hear_is_refused() -> None:
    with pytest.raises(DeployError, match="cannot pass some_switch=false"):
        rendered("sglang", plan_for("sglang", extra=(("some_switch", False),)))


def test_tgi_gets_its_launchers_variables_under_sagemakers_names() -> None:
    chosen = plan_for(
        "tgi",
        tensor_parallel=4,
        max_num_seqs=200,
        max_num_batched_tokens=4096,
        max_model_len=8192,
        gpu_memory_fraction=0.9,
        quantization="fp8",
        kv_cache_dtype="fp8",
        prefix_caching=False,
        enforce_eager=True,
        chunked_prefill=False,
        extra=(("trust_remote_code", True),),
    )
    told, notes = container_named("tgi").fill(chosen, L4, 256, "3.3.6")
    assert rendered("tgi", told, concurrency=256) == {
        "HF_MODEL_ID": MODEL,
        "SERVETUNE_MODEL": MODEL,
        "MESSAGES_API_ENABLED": "true",
        "SM_NUM_GPUS": "4",
        "MAX_BATCH_SIZE": "200",
        "MAX_BATCH_PREFILL_TOKENS": "4096",
        "MAX_TOTAL_TOKENS": "8192",
        "CUDA_MEMORY_FRACTION": "0.9",
        "HF_MODEL_QUANTIZE": "fp8",
        "KV_CACHE_DTYPE": "fp8_e4m3fn",
        "CUDA_GRAPHS": "0",
        "PREFIX_CACHING": "0",
        "PREFILL_CHUNKING": "0",
        "HF_MODEL_TRUST_REMOTE_CODE": "true",
        "WAITING_SERVED_RATIO": "0.3",
        "MAX_WAITING_TOKENS": "20",
        # Its own defaults would refuse the 129th request, and prompts above half the context.
        "MAX_CONCURRENT_REQUESTS": "256",
        "MAX_INPUT_TOKENS": "4096",
    }
    assert any("prompts above 4096 are refused" in note for note in notes)


@pytest.mark.parametrize(("concurrency", "limit"), [(1, "1"), (64, "64"), (0, "128")])
def test_tgi_takes_as_many_requests_as_the_trial_sent(concurrency: int, limit: str) -> None:
    """A trial with one request at a time measured a server that nobody waits for."""
    told, _ = container_named("tgi").fill(
        plan_for("tgi", max_num_seqs=32), L4, concurrency, "3.3.6"
    )
    assert rendered("tgi", told, concurrency=concurrency)["MAX_CONCURRENT_REQUESTS"] == limit


def test_tgi_before_3_is_told_nothing_of_chunks_and_says_so() -> None:
    chosen = plan_for("tgi", chunked_prefill=True, max_num_batched_tokens=512, max_model_len=2048)
    told, notes = container_named("tgi").fill(chosen, L4, 0, "2.4.0")
    variables = rendered("tgi", told)
    assert "PREFILL_CHUNKING" not in variables
    assert "WAITING_SERVED_RATIO" not in variables
    assert variables["MAX_INPUT_TOKENS"] == "512"
    assert any("TGI 2.4.0 chooses chunked_prefill itself" in note for note in notes)


def test_tgi_3_is_told_its_own_defaults_but_for_what_it_works_out() -> None:
    own = resolved(plan_for("tgi", max_model_len=8192), QWEN, L4, version="3.3.6")
    told, notes = container_named("tgi").fill(own, L4, 0, "3.3.6")
    assert rendered("tgi", told) == {
        "HF_MODEL_ID": MODEL,
        "SERVETUNE_MODEL": MODEL,
        "MESSAGES_API_ENABLED": "true",
        "SM_NUM_GPUS": "1",
        "MAX_TOTAL_TOKENS": "8192",
        "MAX_INPUT_TOKENS": "8191",
        "CUDA_MEMORY_FRACTION": "1.0",
        "PREFIX_CACHING": "1",
        "PREFILL_CHUNKING": "1",
        "MAX_CONCURRENT_REQUESTS": "128",
        "WAITING_SERVED_RATIO": "0.3",
        "MAX_WAITING_TOKENS": "20",
        "CUDA_GRAPHS": "1,2,4,8,16,32",
    }
    assert any("max_num_batched_tokens (by the device and the model)" in note for note in notes)
    assert parse_environment("tgi", rendered("tgi", told)) == told


def test_tgi_captures_no_graphs_of_weights_that_forbid_it() -> None:
    told, _ = container_named("tgi").fill(plan_for("tgi", quantization="exl2"), L4, 0, "3.3.6")
    assert "CUDA_GRAPHS" not in rendered("tgi", told)


def test_tgi_says_what_it_sizes_by_itself_and_has_no_copies() -> None:
    _, notes = container_named("tgi").fill(plan_for("tgi"), L4, 0, "3.3.6")
    assert any("works out" in note and "max_model_len" in note for note in notes)
    with pytest.raises(DeployError, match="one copy in its container") as caught:
        filled("tgi", plan_for("tgi", replicas=2))
    assert "--copies 2" in caught.value.hint


def test_every_engine_has_its_usual_container() -> None:
    assert containers_of("vllm") == containers_of("simulated") == ["lmi", "vllm", "hf-vllm"]
    assert (usual_container("sglang"), usual_container("tgi")) == ("sglang", "tgi")
    with pytest.raises(DeployError, match=r"no container of SageMaker's runs llama.cpp"):
        usual_container("llama.cpp")


# Every image that can be chosen, as it is told a tuned plan.


def test_every_image_is_told_what_was_recorded() -> None:
    """Set SERVETUNE_WRITE_GOLDEN=1 to record them anew, and read the difference."""
    told = {
        f"{name}:{tag}": rendered(name, tuned(name), image=_image(name, tag), concurrency=128)
        for name, tag in EVERY_IMAGE
    }
    if os.environ.get("SERVETUNE_WRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    assert told == json.loads(GOLDEN.read_text("utf-8"))


@pytest.mark.parametrize(("container", "tag"), EVERY_IMAGE)
def test_every_image_gives_the_plan_back(container: str, tag: str) -> None:
    original = tuned(container)
    env = rendered(container, original, image=_image(container, tag), concurrency=128)
    assert parse_environment(container, env) == original


def _image(container: str, tag: str) -> Image:
    return next(image for image in images(container) if image.tag == tag)


@pytest.mark.parametrize("image", [OLD_LMI, NEWEST["lmi"]])
def test_lmi_never_gets_the_names_that_stop_it_at_start(image: Image) -> None:
    env = rendered("lmi", plan(tensor_parallel=4, max_num_seqs=64), image=image)
    assert not {"OPTION_MAX_NUM_SEQS", "OPTION_TENSOR_PARALLEL_SIZE"} & set(env)
    assert env["OPTION_MAX_ROLLING_BATCH_SIZE"] == "64"


def test_a_switch_that_an_old_lmi_cannot_turn_off_is_refused() -> None:
    off = plan(prefix_caching=False)
    with pytest.raises(DeployError, match="drops enable_prefix_caching=false") as caught:
        rendered("lmi", off, image=OLD_LMI)
    assert "LMI 26" in caught.value.hint
    assert rendered("lmi", off)["OPTION_ENABLE_PREFIX_CACHING"] == "false"


def test_a_switch_that_is_off_anyway_may_be_dropped() -> None:
    assert (
        rendered("lmi", plan(enforce_eager=False), image=OLD_LMI)["OPTION_ENFORCE_EAGER"] == "false"
    )


def test_a_setting_that_lmi_would_drop_in_silence_is_refused() -> None:
    odd = plan(extra=(("max_nm_seqs", 4),))
    with pytest.raises(DeployError, match="drops 'max_nm_seqs' silently"):
        rendered("lmi", odd)
    assert rendered("vllm", odd)["SM_VLLM_MAX_NM_SEQS"] == "4"


@pytest.mark.parametrize(
    ("fields", "container", "message"),
    [
        ({"pipeline_parallel": 2}, "lmi", "pipeline_parallel_size above 1"),
        ({"data_parallel": 2}, "lmi", "data_parallel_size cannot be set"),
        ({"engine": "sglang"}, "lmi", "runs vllm, the plan is for sglang"),
        ({"engine": "sglang"}, "vllm", "runs vllm, the plan is for sglang"),
        ({"extra": (("port", 8000),)}, "vllm", "'port' belongs to the container"),
        ({"extra": (("api_server_count", 2),)}, "vllm", "the container starts one API server"),
        ({"extra": (("chat_template", "a\nb"),)}, "vllm", "spans lines"),
        (
            {"prefix_caching": True, "extra": (("no_enable_prefix_caching", True),)},
            "vllm",
            "the plan says both",
        ),
    ],
)
def test_what_a_container_cannot_say_is_an_error(
    fields: dict[str, Any], container: str, message: str
) -> None:
    with pytest.raises(DeployError, match=message):
        rendered(container, plan(**fields))


def test_a_negative_extra_means_the_switch_is_off() -> None:
    env = rendered("lmi", plan(extra=(("no_enable_prefix_caching", True),)))
    assert env["OPTION_ENABLE_PREFIX_CACHING"] == "false"


def test_words_for_dtypes_that_lmi_lacks_are_translated() -> None:
    assert rendered("lmi", plan(dtype="half"))["OPTION_DTYPE"] == "float16"
    assert rendered("vllm", plan(dtype="half"))["SM_VLLM_DTYPE"] == "half"


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_staged_model_is_served_under_its_own_name(container: str) -> None:
    own = container_named(container)
    env = rendered(container, plan_for(container), model_source="s3://bucket/qwen/")
    assert env[own.model_key] == "/opt/ml/model"
    assert env[own.key("served_model_name")] == MODEL
    assert parse_environment(container, env).model == MODEL
    local = environment(
        own,
        Plan(model="/home/me/tiny", engine=own.dialect),
        image=NEWEST[container],
        model_source="s3://b/tiny/",
    )
    assert local[own.key("served_model_name")] == "tiny"
    assert not any("/home/me" in value for value in local.values())


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize(
    "extra", [("hf_token", "x"), ("api_key", "x"), ("revision", "hf_" + "a1" * 17)]
)
def test_a_credential_among_the_settings_is_refused(container: str, extra: tuple[str, str]) -> None:
    with pytest.raises(DeployError, match="credential") as caught:
        rendered(container, plan_for(container, extra=(extra,)))
    assert "a1a1" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize("container", CONTAINERS)
def test_bounds_of_the_environment_hold(container: str) -> None:
    long = '{"method": "' + "x" * 1100 + '"}'
    with pytest.raises(DeployError, match="characters, SageMaker takes 1024"):
        rendered(container, plan_for(container, extra=(("speculative_config", long),)))
    with pytest.raises(DeployError, match="environment variables, SageMaker takes 100"):
        rendered("vllm", plan(extra=tuple((f"x{n}", n) for n in range(101))))


def test_an_unknown_container_names_the_known_ones() -> None:
    with pytest.raises(UnknownName) as caught:
        container_named("llmi")
    assert "lmi" in caught.value.hint


def test_reading_an_environment_says_what_is_wrong_with_it() -> None:
    with pytest.raises(DeployError, match="no HF_MODEL_ID"):
        parse_environment("lmi", {"OPTION_TENSOR_PARALLEL_DEGREE": "4"})
    with pytest.raises(DeployError, match="wrong value"):
        parse_environment("vllm", {"SM_VLLM_MODEL": "m", "SM_VLLM_MAX_NUM_SEQS": "many"})


def test_reading_passes_over_variables_that_are_no_settings() -> None:
    env = rendered("lmi", plan()) | {"HF_HUB_ENABLE_HF_TRANSFER": "1"}
    assert parse_environment("lmi", env) == plan()


# Round trip: what is rendered can be read back, so nothing that was swept is lost.

COUNTS = st.integers(1, 8)
LARGE = st.integers(1, 2**20)
WORDS = st.from_regex(r"[a-z]{2,8}", fullmatch=True).filter(
    lambda word: word not in ("true", "false", "nan", "inf", "infinity")
)
VALUES: st.SearchStrategy[Setting] = (
    st.booleans() | st.integers(-(2**31), 2**31) | st.floats(0.001, 1e6) | WORDS
)
EXTRA = st.dictionaries(
    st.sampled_from(
        ["seed", "block_hash", "max_logprobs", "tokenizer_mode", "async_scheduling", "revision"]
    ),
    VALUES,
)


@st.composite
def plans(draw: st.DrawFn, container: str) -> Plan:
    def maybe(some: st.SearchStrategy[Any]) -> Any:
        return draw(st.none() | some)

    extra = draw(EXTRA)
    if container == "lmi":
        extra.pop("block_hash", None)  # no field of EngineArgs
    return Plan(
        model=draw(st.sampled_from(["Qwen/Qwen3-4B", "gpt2", "org/name-1.5_b"])),
        tensor_parallel=draw(COUNTS),
        pipeline_parallel=1 if container == "lmi" else draw(COUNTS),
        data_parallel=1 if container == "lmi" else draw(COUNTS),
        expert_parallel=draw(st.booleans()),
        replicas=draw(COUNTS),
        max_num_seqs=maybe(LARGE),
        max_num_batched_tokens=maybe(LARGE),
        max_model_len=maybe(LARGE),
        gpu_memory_fraction=maybe(st.floats(0.01, 1)),
        block_tokens=maybe(COUNTS),
        dtype=maybe(st.sampled_from(["auto", "bfloat16", "float16"])),
        quantization=maybe(st.sampled_from(["fp8", "awq", "bitsandbytes"])),
        kv_cache_dtype=maybe(st.sampled_from(["auto", "fp8"])),
        prefix_caching=maybe(st.booleans()),
        chunked_prefill=maybe(st.booleans()),
        enforce_eager=maybe(st.booleans()),
        extra=tuple(sorted(extra.items())),
    )


@settings(max_examples=30, deadline=None, derandomize=True)
@given(plans("lmi"))
def test_a_plan_survives_lmis_environment(original: Plan) -> None:
    assert parse_environment("lmi", rendered("lmi", original)) == original


@pytest.mark.parametrize("container", ["vllm", pytest.param("hf-vllm", marks=pytest.mark.slow)])
@settings(max_examples=30, deadline=None, derandomize=True)
@given(original=plans("vllm"))
def test_a_plan_survives_the_vllm_containers_environment(container: str, original: Plan) -> None:
    copies = original.replicas * original.data_parallel
    expected = msgspec.structs.replace(original, replicas=1, data_parallel=copies)
    assert parse_environment(container, rendered(container, original)) == expected


@settings(max_examples=30, deadline=None, derandomize=True)
@given(plans("vllm"), LARGE, LARGE, st.floats(0.01, 1))
def test_a_plan_survives_sglangs_environment(
    drawn: Plan, sequences: int, tokens: int, fraction: float
) -> None:
    original = msgspec.structs.replace(
        drawn, engine="sglang", max_num_seqs=sequences, max_num_batched_tokens=tokens,
        gpu_memory_fraction=fraction,
        expert_parallel=drawn.expert_parallel and drawn.tensor_parallel > 1,
    )  # fmt: skip
    told = filled("sglang", original)
    copies = told.replicas * told.data_parallel
    expected = msgspec.structs.replace(told, replicas=1, data_parallel=copies)
    assert parse_environment("sglang", rendered("sglang", told)) == expected


@settings(max_examples=30, deadline=None, derandomize=True)
@given(plans("lmi"))
def test_a_plan_survives_tgis_environment(drawn: Plan) -> None:
    extra = tuple(item for item in drawn.extra if item[0] != "revision")
    original = msgspec.structs.replace(
        drawn, engine="tgi", replicas=1, expert_parallel=False, extra=extra
    )
    told = filled("tgi", original)
    assert parse_environment("tgi", rendered("tgi", told)) == told
