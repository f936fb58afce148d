from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.deploy.containers import (
    CONTAINERS,
    container_named,
    environment,
    parse_environment,
)
from servetune.deploy.images import Image, choose_image
from servetune.errors import DeployError, UnknownName
from servetune.plan.plan import Plan, Setting

MODEL = "Qwen/Qwen3-4B"
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
    with pytest.raises(DeployError, match="drops 'max_nm_seqs' without a word"):
        rendered("lmi", odd)
    assert rendered("vllm", odd)["SM_VLLM_MAX_NM_SEQS"] == "4"


@pytest.mark.parametrize(
    ("fields", "container", "message"),
    [
        ({"pipeline_parallel": 2}, "lmi", "pipeline_parallel_size above 1"),
        ({"data_parallel": 2}, "lmi", "data_parallel_size cannot be said"),
        ({"engine": "sglang"}, "lmi", "runs vllm, the plan is for sglang"),
        ({"engine": "sglang"}, "vllm", "runs vllm, the plan is for sglang"),
        ({"extra": (("port", 8000),)}, "vllm", "'port' belongs to the container"),
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
    env = rendered(container, plan(), model_source="s3://bucket/qwen/")
    assert env[own.model_key] == "/opt/ml/model"
    assert env[own.key("served_model_name")] == MODEL
    assert parse_environment(container, env).model == MODEL
    local = environment(
        own, Plan(model="/home/me/tiny"), image=NEWEST[container], model_source="s3://b/tiny/"
    )
    assert local[own.key("served_model_name")] == "tiny"
    assert not any("/home/me" in value for value in local.values())


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize(
    "extra", [("hf_token", "x"), ("api_key", "x"), ("revision", "hf_" + "a1" * 17)]
)
def test_a_credential_among_the_settings_is_refused(container: str, extra: tuple[str, str]) -> None:
    with pytest.raises(DeployError, match="credential") as caught:
        rendered(container, plan(extra=(extra,)))
    assert "a1a1" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize("container", CONTAINERS)
def test_bounds_of_the_environment_hold(container: str) -> None:
    long = '{"method": "' + "x" * 1100 + '"}'
    with pytest.raises(DeployError, match="characters, SageMaker takes 1024"):
        rendered(container, plan(extra=(("speculative_config", long),)))
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


@settings(max_examples=150, deadline=None, derandomize=True)
@given(plans("lmi"))
def test_a_plan_survives_lmis_environment(original: Plan) -> None:
    assert parse_environment("lmi", rendered("lmi", original)) == original


@settings(max_examples=150, deadline=None, derandomize=True)
@given(plans("vllm"))
def test_a_plan_survives_the_vllm_containers_environment(original: Plan) -> None:
    copies = original.replicas * original.data_parallel
    expected = msgspec.structs.replace(original, replicas=1, data_parallel=copies)
    assert parse_environment("vllm", rendered("vllm", original)) == expected
