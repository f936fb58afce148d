"""What drafted tokens gain and cost; in theory first, then in the law and the estimate."""

from __future__ import annotations

import doctest
import sys

import msgspec
import numpy as np
import pytest

from servetune.engines import plan_from_settings, resolved, settings_of
from servetune.errors import PlanError
from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf import estimate, performance_at, run_features
from servetune.perf.roofline import (
    PlannedRun,
    Step,
    breakdown,
    interval_of,
    predict_runs,
    safety_factors_of,
    step_law,
)
from servetune.perf.roofline.drafting import (
    acceptance_for,
    doubt_about_drafts,
    tokens_per_step,
)
from servetune.plan import Plan
from servetune.workload import LengthLaws, Workload

SHAPE, MACHINE = load_shape("Qwen/Qwen3-8B", catalogue_first=True), node(gpu="H100")
PLAN = Plan(model=SHAPE.name)
LOAD = Workload.of(LengthLaws.fixed(1000, 501), request_count=8)


def drafting(tokens=3, accepted=0.7, method=None):
    return msgspec.structs.replace(
        PLAN, draft_tokens=tokens, draft_acceptance_fraction=accepted, draft_method=method
    )


def law_of(plan):
    return step_law(resolved(plan, SHAPE, MACHINE.device), SHAPE, MACHINE)


@pytest.mark.parametrize("accepted", [0.0, 0.35, 0.8, 1.0])
def test_the_gain_is_that_of_a_run_of_lucky_coins(accepted):
    """Draws of k coins: all before the first tail count, and one token comes for free."""
    rng = np.random.default_rng(4)
    coins = rng.random((200_000, 3)) < accepted
    gained = 1 + np.cumprod(coins, axis=1).sum(axis=1).mean()
    assert tokens_per_step(drafting(3, accepted)) == pytest.approx(gained, rel=0.01)


def test_without_drafts_nothing_changes():
    assert tokens_per_step(PLAN) == 1.0
    assert law_of(PLAN).tokens_each == 1


def test_drafts_that_are_never_right_only_cost():
    plain = performance_at(SHAPE, MACHINE, PLAN, LOAD, 64)
    wasted = performance_at(SHAPE, MACHINE, drafting(accepted=0.0), LOAD, 64)
    assert wasted.itl_ms > plain.itl_ms
    assert wasted.output_tokens_per_s < plain.output_tokens_per_s


def test_free_drafts_that_are_always_right_divide_the_gap_of_one_user():
    """Reading the weights is all that a single user waits for: four tokens for one reading."""
    plain = performance_at(SHAPE, MACHINE, PLAN, LOAD, 1)
    lucky = performance_at(SHAPE, MACHINE, drafting(3, 1.0, "ngram"), LOAD, 1)
    assert lucky.itl_ms == pytest.approx(plain.itl_ms / 4, rel=0.03)
    assert lucky.ttft_ms == pytest.approx(plain.ttft_ms, rel=1e-9)


def test_better_drafts_are_never_slower_and_looking_up_is_never_dearer():
    gaps = [
        performance_at(SHAPE, MACHINE, drafting(3, a), LOAD, 32).itl_ms for a in (0, 0.3, 0.6, 0.9)
    ]
    assert gaps == sorted(gaps, reverse=True)
    looked_up = performance_at(SHAPE, MACHINE, drafting(3, 0.6, "ngram"), LOAD, 32)
    assert looked_up.itl_ms < gaps[2]


def test_drafts_help_a_crowd_less_than_a_single_user():
    """A crowd's matrices are bound by compute, and verified tokens are computed whole."""
    short = Workload.of(LengthLaws.fixed(64, 501), request_count=8)
    gains = []
    for users in (1, 1024):
        plain, drafted = (
            performance_at(SHAPE, MACHINE, plan, short, users)
            for plan in (PLAN, drafting(3, 0.7, "ngram"))
        )
        gains.append(plain.itl_ms / drafted.itl_ms)
    assert gains[0] > 2
    assert gains[1] < 0.7 * gains[0]


@pytest.mark.parametrize("users", [1, 20, 300])
def test_littles_law_and_tokens_are_conserved(users):
    point = performance_at(SHAPE, MACHINE, drafting(), LOAD, users)
    assert point.requests_per_s * point.e2e_ms / 1000 == pytest.approx(users, rel=1e-3)
    assert point.output_tokens_per_s == pytest.approx(501 * point.requests_per_s)
    assert point.e2e_ms == pytest.approx(point.ttft_ms + 500 * point.itl_ms)


def test_a_step_adds_up_and_a_run_of_steps_is_its_steps():
    law = law_of(drafting())
    step = Step(decode_sequences=16, decode_context_tokens=16 * 900.0, tokens_each=4)
    parts = breakdown(law, step, MACHINE.device)
    assert sum(part.time_ms for part in parts) == pytest.approx(1000 * law(step))
    assert any(part.name == "drafting" for part in parts)
    assert sum(part.flops for part in parts) == pytest.approx(law.ops.flops(step))
    run = law.decode_run_s(16, 16 * 900, 3)
    assert run == pytest.approx([law.seconds(0, 0.0, 0, 16, 16 * (900 + n)) for n in range(3)])


def test_the_estimate_says_what_it_assumed():
    said = " ".join(estimate(SHAPE, MACHINE, drafting(2, 0.5), LOAD).notes)
    assert "1.75 tokens gained" in said
    assert "assumed" not in said
    assert "assumed" in " ".join(estimate(SHAPE, MACHINE, drafting(2, None), LOAD).notes)


def test_drafts_shorten_whole_runs_as_they_shorten_the_steady_state():
    def run(plan):
        return PlannedRun(
            shape=SHAPE,
            node=MACHINE,
            plan=plan,
            lengths=LOAD.lengths,
            concurrency=1,
            request_count=100,
        )

    plain, drafted = predict_runs([run(Plan(model=SHAPE.name)), run(drafting(3, 0.7))])
    steady_plain = performance_at(SHAPE, MACHINE, Plan(model=SHAPE.name), LOAD, 1)
    steady_drafted = performance_at(SHAPE, MACHINE, drafting(3, 0.7), LOAD, 1)
    assert drafted.point.tpot_ms / plain.point.tpot_ms == pytest.approx(
        steady_drafted.itl_ms / steady_plain.itl_ms, rel=0.01
    )
    assert drafted.point.tpot_ms < 0.6 * plain.point.tpot_ms
    _, output_tokens = LOAD.lengths.fixed_pair
    assert drafted.point.e2e_ms == pytest.approx(
        drafted.point.ttft_ms + (output_tokens - 1) * drafted.point.tpot_ms
    )


def test_an_assumed_acceptance_widens_the_interval_and_a_stated_one_does_not():
    plans = [drafting(4, 0.6, "ngram"), drafting(4, None, "mtp"), drafting(4, None, "ngram")]
    stated, assumed, looked_up = (interval_of(MACHINE, plan, SHAPE) for plan in plans)
    plain = interval_of(MACHINE, PLAN, SHAPE)
    assert (stated.low_factor, stated.high_factor) == (plain.low_factor, plain.high_factor)
    assert looked_up.high_factor > 1.2 * assumed.high_factor > 1.3 * stated.high_factor
    assert looked_up.low_factor < assumed.low_factor < stated.low_factor
    assert looked_up.ttft_high_factor == stated.ttft_high_factor
    assert "acceptance of drafts is assumed" in looked_up.basis
    cautions = [
        safety_factors_of(MACHINE, plan, SHAPE, 0.8).tpot_factor for plan in (plans[0], plans[2])
    ]
    assert cautions[1] > 1.2 * cautions[0]


def test_the_interval_of_assumed_drafts_holds_what_was_published():
    """Steps of n-grams on mixed prompts and on edits of code, and of MTP (`drafting`)."""
    for method, tokens, accepted in (("ngram", 5, 0.16), ("ngram", 5, 0.72), ("mtp", 1, 0.85)):
        plan = drafting(tokens, None, method)
        gain = tokens_per_step(drafting(tokens, accepted)) / tokens_per_step(plan)
        assert abs(np.log(gain)) < 1.645 * doubt_about_drafts(plan)


def test_runs_doubt_their_acceptance_by_the_share_of_their_time_that_it_decides():
    def place(plan, users):
        run = PlannedRun(
            shape=SHAPE,
            node=MACHINE,
            plan=plan,
            lengths=LOAD.lengths,
            concurrency=users,
            request_count=10 * users,
        )
        return run_features([run])[0]

    alone = place(drafting(4, None, "ngram"), 1)
    assert alone.tpot_draft_doubt == pytest.approx(
        doubt_about_drafts(drafting(4, None, "ngram")), rel=0.1
    )
    assert abs(alone.ttft_draft_doubt) < 0.02
    assert alone.draft_method == "ngram"
    stated = place(drafting(4, 0.6, "ngram"), 1)
    assert (stated.draft_method, stated.tpot_draft_doubt) == ("", 0.0)
    assert place(PLAN, 1).tpot_draft_doubt == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"draft_tokens": 0},
        {"draft_tokens": 2, "draft_acceptance_fraction": 1.2},
        {"draft_method": "ngram"},
        {"draft_acceptance_fraction": 0.5},
    ],
)
def test_drafts_that_make_no_sense_are_refused(wrong):
    with pytest.raises(PlanError):
        Plan(model="m", **wrong)


def test_vllm_gets_tokens_and_method_and_not_the_acceptance():
    settings = settings_of(drafting(3, 0.7, "ngram"))
    assert settings["speculative_config"] == '{"method": "ngram", "num_speculative_tokens": 3}'
    back = plan_from_settings("vllm", SHAPE.name, settings)
    assert (back.draft_tokens, back.draft_method) == (3, "ngram")
    assert settings_of(back) == settings


@pytest.mark.parametrize(
    ("engine", "method", "settings"),
    [
        (
            "sglang",
            "mtp",
            {
                "speculative_algorithm": "EAGLE",
                "speculative_num_steps": 3,
                "speculative_eagle_topk": 1,
                "speculative_num_draft_tokens": 4,
            },
        ),
        (
            "sglang",
            "ngram",
            {
                "speculative_algorithm": "NGRAM",
                "speculative_ngram_max_bfs_breadth": 1,
                "speculative_num_draft_tokens": 4,
            },
        ),
        ("tgi", "ngram", {"speculate": 3}),
    ],
)
def test_engines_are_told_of_drafts_in_their_own_words(engine, method, settings):
    plan = msgspec.structs.replace(drafting(3, 0.7, method), engine=engine)
    said = settings_of(plan)
    assert settings.items() <= said.items()
    back = plan_from_settings(engine, SHAPE.name, said)
    assert (back.draft_tokens, back.draft_method, back.extra) == (3, method, ())


@pytest.mark.parametrize(
    ("engine", "method", "told"),
    [
        ("sglang", "eagle3", "speculative_draft_model_path"),
        ("vllm", "eagle3", "speculative_config"),
        ("tgi", "mtp", "ngram"),
        ("transformers", "mtp", "its own settings"),
    ],
)
def test_an_engine_without_words_for_drafts_is_not_started_without_them(engine, method, told):
    with pytest.raises(PlanError) as error:
        settings_of(msgspec.structs.replace(drafting(3, 0.7, method), engine=engine))
    assert told in error.value.hint


@pytest.mark.parametrize(
    ("settings", "drafts"),
    [
        ({"speculative_algorithm": "NEXTN", "speculative_num_steps": 2,
          "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 9}, (2, "mtp")),
        ({"speculative-algorithm": "nextn", "speculative-num-steps": 2,
          "speculative-eagle-topk": 1}, (2, "mtp")),
        # Trees, lengths that SGLang chooses, and another model's drafts.
        ({"speculative_algorithm": "EAGLE", "speculative_num_steps": 2,
          "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 9}, (None, None)),
        ({"speculative_algorithm": "NEXTN"}, (None, None)),
        ({"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 8}, (None, None)),
        ({"speculative_algorithm": "EAGLE", "speculative_num_steps": 3,
          "speculative_eagle_topk": 1, "speculative_adaptive": True}, (None, None)),
        ({"speculative_num_draft_tokens": 4}, (None, None)),
        ({"speculative_algorithm": "NGRAM", "speculative_ngram_max_bfs_breadth": 1,
          "speculative_num_draft_tokens": 8, "speculative_eagle_topk": 4}, (None, None)),
        ({"speculative_algorithm": "STANDALONE", "speculative_num_steps": 3,
          "speculative_eagle_topk": 1, "speculative_draft_model_path": "org/draft"}, (None, None)),
    ],
)  # fmt: skip
def test_chains_of_the_models_own_drafts_are_read_of_sglang(settings, drafts):
    plan = plan_from_settings("sglang", "m", settings)
    assert (plan.draft_tokens, plan.draft_method) == drafts
    if drafts[0] is None:
        assert dict(plan.extra) == {name.replace("-", "_"): v for name, v in settings.items()}


@pytest.mark.parametrize(
    ("engine", "settings"),
    [
        ("sglang", {"speculative_algorithm": "EAGLE3", "speculative_num_steps": 3,
                    "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4,
                    "speculative_draft_model_path": "org/head"}),
        ("sglang", {"speculative_algorithm": "EAGLE3", "speculative_num_steps": 3,
                    "speculative_eagle_topk": 1, "speculative_draft_model": "org/head"}),
        ("vllm", {"speculative_config": '{"method": "eagle3", "model": "org/head", '
                                        '"num_speculative_tokens": 3}'}),
    ],
)  # fmt: skip
def test_drafts_by_a_head_of_another_checkpoint_are_priced_and_told_as_given(engine, settings):
    plan = plan_from_settings(engine, SHAPE.name, settings)
    assert (plan.draft_tokens, plan.draft_method) == (3, "eagle3")
    assert set(settings.values()) <= set(settings_of(plan).values())
    assert plan_from_settings(engine, SHAPE.name, settings_of(plan)) == plan
    own = msgspec.structs.replace(plan, draft_method="mtp", extra=())
    assert tokens_per_second(plan) == pytest.approx(tokens_per_second(own))
    with pytest.raises(PlanError, match="needs a model that drafts"):
        settings_of(msgspec.structs.replace(plan, draft_tokens=5))


def tokens_per_second(plan: Plan) -> float:
    load = Workload.of(LengthLaws.fixed(512, 128), request_count=1)
    return performance_at(SHAPE, MACHINE, plan, load, 4).output_tokens_per_s


def test_silence_about_drafts_is_none():
    swept = {"speculative_algorithm": None, "speculative_num_steps": None}
    assert plan_from_settings("sglang", "m", swept) == Plan(model="m", engine="sglang")


def test_what_turns_drafts_off_is_kept():
    plan = plan_from_settings("tgi", "m", {"speculate": 0})
    assert (plan.draft_tokens, settings_of(plan)["speculate"]) == (None, 0)


def test_a_setting_beside_drafts_does_not_contradict_them():
    plan = msgspec.structs.replace(drafting(3, 0.7, "ngram"), engine="tgi")
    assert settings_of(msgspec.structs.replace(plan, extra=(("speculate", 3),)))["speculate"] == 3
    with pytest.raises(PlanError, match="speculate=5 contradicts draft_tokens 3"):
        settings_of(msgspec.structs.replace(plan, extra=(("speculate", 5),)))


def test_sglang_runs_few_sequences_at_once_where_it_drafts():
    silent = Plan(model=SHAPE.name, engine="sglang")
    plan = msgspec.structs.replace(silent, draft_tokens=3)
    assert resolved(plan, SHAPE, MACHINE.device).max_num_seqs == 48
    assert resolved(silent, SHAPE, MACHINE.device).max_num_seqs > 48
    by_another = (("speculative_algorithm", "EAGLE3"),)
    passed_on = msgspec.structs.replace(silent, extra=by_another)
    assert resolved(passed_on, SHAPE, MACHINE.device).max_num_seqs == 48


@pytest.mark.parametrize(
    "text",
    [
        '{"model": "org/draft", "num_speculative_tokens": 3}',
        '{"num_speculative_tokens": "3"}',
        "not json",
    ],
)
def test_a_configuration_that_says_more_passes_through(text):
    plan = plan_from_settings("vllm", "m", {"speculative_config": text})
    assert plan.draft_tokens is None
    assert settings_of(plan)["speculative_config"] == text


@pytest.mark.parametrize("drafted", [1, 3, 8])
def test_the_acceptance_of_a_number_of_tokens_gives_that_number(drafted: int) -> None:
    for gained in np.linspace(1, drafted + 1, 9):
        accepted = acceptance_for(drafted, float(gained))
        plan = Plan(model="m", draft_tokens=drafted, draft_acceptance_fraction=accepted)
        assert tokens_per_step(plan) == pytest.approx(gained, abs=1e-9)


def test_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(sys.modules["servetune.perf.roofline.drafting"]).failed == 0
