"""What is measured is what is shipped: argument by argument, for every engine and target.

`tune` starts `Engine.command` with `Engine.plan_variables`; every target renders the same.
"""

import sys
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "deploy"))
from rendered import MODEL, RENDER, has_words, served, started

from servetune.deploy.containers import (
    CONTAINERS,
    container_named,
    environment,
    parse_environment,
    usual_container,
)
from servetune.deploy.images import images
from servetune.deploy.launchers import deployable_engines, launcher_of, plan_of_words
from servetune.engines import ENGINES, engine
from servetune.errors import CannotRender, UnknownName
from servetune.hardware import device
from servetune.plan import Plan

#: Plans that between them choose every field that a command line can say.
CASES = {
    "silent": {},
    "spread": {"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 2},
    "ranks": {"tensor_parallel": 2},
    "stages": {"pipeline_parallel": 2},
    "experts": {"tensor_parallel": 4, "expert_parallel": True},
    "batch": {"max_num_seqs": 64, "max_num_batched_tokens": 4096, "max_model_len": 8192},
    "memory": {"gpu_memory_fraction": 0.85, "block_tokens": 32, "kv_cache_dtype": "fp8"},
    "types": {"dtype": "bfloat16", "quantization": "fp8"},
    "on": {"prefix_caching": True, "chunked_prefill": True, "enforce_eager": False},
    "off": {"prefix_caching": False, "chunked_prefill": False, "enforce_eager": True},
    "whole prompts": {"chunked_prefill": False, "max_num_batched_tokens": 8192},
    "own settings": {"extra": (("x_switch", True), ("x_text", "a b"), ("x_number", 4))},
}


#: Case that an engine has words for and no deployment can say, to the refusal.
REFUSED = {("llama.cpp", "spread"): "splits rows or layers"}


def plan_of(name, case):
    known = {
        field: value
        for field, value in CASES[case].items()
        if field == "extra" or has_words(name, field, value)
    }
    return Plan(model=MODEL, engine=name, **known)


def targets_of(name):
    ships = launcher_of(Plan(model=MODEL, engine=name)).shipping
    needs = {"bentoml": ships.install, "kubernetes-hpa": ships.in_flight}
    return [target for target in RENDER if needs.get(target, True)]


def measured(launcher, plan, *, host, version):
    """Words and variables with which `tune` starts the server of a plan."""
    words = launcher.command(plan, host=host, port=8000, version=version)
    return list(words), launcher.plan_variables(plan)


@pytest.mark.parametrize(
    ("name", "target"),
    [(name, target) for name in deployable_engines() for target in targets_of(name)],
)
def test_every_argument_that_is_measured_is_shipped(name, target):
    for case in CASES:
        given = plan_of(name, case)
        if (name, case) in REFUSED:
            with pytest.raises(CannotRender, match=REFUSED[name, case]):
                served(given)
        else:
            check_shipped(name, target, given)


def check_shipped(name, target, given):
    made = served(given)
    launcher = launcher_of(given)
    _, words, variables = started(target, RENDER[target](made), name)
    host = words[words.index(launcher.host_word) + 1]

    program, *words = words
    shipped_plan = msgspec.structs.replace(made.plan, model=MODEL)
    exact, exact_variables = measured(launcher, shipped_plan, host=host, version=made.version)
    assert program in (exact[0], launcher.shipping.program)
    assert words == exact[1:]
    assert made.variables == exact_variables
    if target != "bentoml":
        assert exact_variables.items() <= variables.items()

    # The trial's own words are among them: what a deployment adds was open in the trial.
    own, own_variables = measured(launcher, given, host=host, version=made.version)
    assert set(own[1:]) <= set(words) or name in OPEN_IN_ONE_WORD
    assert own_variables.items() <= made.variables.items()

    command = (launcher.program.command, *launcher.start)
    back = plan_of_words(launcher, words[len(command) - 1 :], made.variables)
    assert msgspec.structs.replace(back, replicas=given.replicas) == made.plan


@pytest.mark.parametrize("name", deployable_engines())
def test_an_engine_without_a_container_of_sagemakers_says_so(name):
    ran_by = {engine(one.dialect).name for one in CONTAINERS.values()}
    if name in ran_by:
        assert container_named(usual_container(name)).dialect == name
    else:
        with pytest.raises(CannotRender, match=f"no container of SageMaker's runs {name}"):
            usual_container(name)


#: Engines whose settings share one word, so that words differ where a member is added.
OPEN_IN_ONE_WORD = {"mlc-llm"}


@pytest.mark.parametrize("name", [name for name in ENGINES if name not in deployable_engines()])
def test_an_engine_is_deployed_refused_or_stood_in_for(name):
    stands_in = engine(name).ships_as
    if stands_in:
        assert launcher_of(Plan(model=MODEL, engine=name)) is engine(stands_in)
    else:
        with pytest.raises(UnknownName, match="engine to deploy"):
            launcher_of(Plan(model=MODEL, engine=name))


def variable_of(container, name, value):
    """The variable and the text that say a setting."""
    if value is False and container.off == "negative":
        return container.key(f"no_{name}"), "true"
    return container.key(name), str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("case", ["batch", "types", "off", "experts"])
@pytest.mark.parametrize("container", CONTAINERS)
def test_a_containers_variables_say_the_settings_that_are_measured(container, case):
    own = CONTAINERS[container]
    image = images(container)[-1]
    chosen = {"max_num_seqs": 64, "max_num_batched_tokens": 4096, "gpu_memory_fraction": 0.9}
    chosen |= CASES[case]
    fields = {name: v for name, v in chosen.items() if has_words(own.dialect, name, v)}
    given = Plan(model=MODEL, engine=own.dialect, **fields)
    plan, _ = own.fill(given, device("H100"), 0, image.engine_version or "")
    variables = environment(own, plan, image=image, model_source=MODEL)
    for name, value in engine(own.dialect).plan_settings(plan, image.engine_version).items():
        if value is not None:
            key, text = variable_of(own, name, value)
            assert variables[key] == text
    back = parse_environment(container, variables)
    assert {field: getattr(back, field) for field in fields} == {
        field: getattr(plan, field) for field in fields
    }
