"""How a Plan becomes words, for the last versions of each engine: tests/golden/argv/ENGINE.json.

Each file names the source that its spelling was checked against. To write one anew after a
change that is meant: SERVETUNE_WRITE_GOLDEN=1 pytest tests/engines/test_argv.py
"""

import json
import os
from pathlib import Path

import pytest

from servetune.engines import ENGINES, engine
from servetune.errors import PlanError
from servetune.plan import Plan

GOLDEN = Path(__file__).parents[1] / "golden" / "argv"
WRITE = bool(os.environ.get("SERVETUNE_WRITE_GOLDEN"))

#: Engines that have no words of their own to get wrong.
WORDLESS = {"external", "command"}

CASES = {
    "silent": {},
    "spread": {"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 2},
    "experts": {"tensor_parallel": 4, "expert_parallel": True},
    "batch": {"max_num_seqs": 64, "max_num_batched_tokens": 4096, "max_model_len": 8192},
    "memory": {"gpu_memory_fraction": 0.85, "block_tokens": 32, "kv_cache_dtype": "fp8"},
    "types": {"dtype": "bfloat16", "quantization": "fp8"},
    "on": {"prefix_caching": True, "chunked_prefill": True, "enforce_eager": False},
    "off": {"prefix_caching": False, "chunked_prefill": False, "enforce_eager": True},
}


def command_for(name, version, fields):
    """Each field alone, so that one without words does not hide the others."""
    one = engine(name)
    accepted, refused = {}, {}
    for field, value in fields.items():
        try:
            one.command(Plan(model="m", engine=name, **{field: value}), host="h", port=1)
            accepted[field] = value
        except PlanError as error:
            refused[field] = f"{error.message}: {error.hint}"
    plan = Plan(model="org/model", engine=name, **accepted)
    try:
        argv = one.command(
            plan, host="127.0.0.1", port=8000, executable=("PROGRAM",), version=version
        )
    except PlanError as error:
        argv, refused["together"] = (), f"{error.message}: {error.hint}"
    try:
        checked = list(one.check(plan, version=version))
    except PlanError as error:
        checked = [f"{error.message}: {error.hint}"]
    return {
        "plan": fields,
        "checked": checked,
        "argv": list(argv),
        "environment": {k: v for k, v in one.environment(plan).items() if k != "PYTHONPATH"},
        "refused": refused,
    }


def versions_of(name):
    return engine(name).known_versions or ("",)


@pytest.mark.parametrize("name", [name for name in ENGINES if name not in WORDLESS])
def test_each_version_is_spoken_to_as_its_golden_says(name):
    told = {
        version or "of vLLM": {
            "source": engine(name).settings(version or None).source,
            "cases": {case: command_for(name, version or None, f) for case, f in CASES.items()},
        }
        for version in versions_of(name)
    }
    path = GOLDEN / f"{name}.json"
    if WRITE:
        path.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    assert told == json.loads(path.read_text())


@pytest.mark.parametrize("name", [name for name in ENGINES if name not in WORDLESS])
def test_every_option_of_a_golden_is_one_of_its_versions(name):
    """The spelling, against the settings that were read off that version's own source."""
    for version, parts in json.loads((GOLDEN / f"{name}.json").read_text()).items():
        table = engine(name).settings(None if version == "of vLLM" else version)
        for case in parts["cases"].values():
            for word in case["argv"]:
                option = word.partition("=")[0]
                if not option.startswith("--") or option == "--serve":
                    continue
                own = table.named(option)
                turned = table.named(option.replace("--no-", "--", 1))
                warned = option[2:].replace("-", "_") in " ".join(case["checked"])
                assert own or warned or (turned and turned.negatable), f"{option}, {version}"
                if own and "=" in word:
                    assert own.kind != "bool" or own.choices, f"{word}: a switch takes no value"


def test_three_versions_of_each_engine_whose_releases_are_at_hand():
    at_hand = ("vllm", "sglang", "lmdeploy", "transformers", "max", "llama.cpp")
    for name in at_hand:
        assert len(engine(name).known_versions) >= 3


@pytest.mark.parametrize(
    ("name", "minors"),
    [("tgi", ["3.3", "3.2", "3.1", "3.0"]), ("tensorrt-llm", ["1.3", "1.2", "1.1", "1.0", "0.21"])],
)
def test_consecutive_versions_of_engines_that_are_described_by_hand(name, minors):
    known = [version.rpartition(".")[0] for version in engine(name).known_versions]
    assert known[: len(minors)] == minors


def test_tensorrt_llm_has_chunked_prefill_as_an_option_from_1_2():
    plan = Plan(model="m", engine="tensorrt-llm", chunked_prefill=True)
    assert engine("tensorrt-llm").check(plan, version="1.2.0") == ()
    with pytest.raises(PlanError, match=r"1\.1\.0 has no setting enable_chunked_prefill"):
        engine("tensorrt-llm").check(plan, version="1.1.0")
