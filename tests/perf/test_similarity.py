"""What a measured run says of others: more of those near to it, and never more than it knows."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf import Anchor, RunFeatures, calibrated, most_informative, run_features
from servetune.perf.roofline import PlannedRun, length_moments
from servetune.perf.roofline.causes import CAUSES, doubts_of, slopes_of
from servetune.perf.roofline.similarity import Similarity, guessed_logs, remaining_sd, similarity_of
from servetune.plan import Plan
from servetune.workload import LengthLaws
from servetune.workload.parts import SharedPrefix

HERE = RunFeatures(
    engine="vllm",
    storage="fp8",
    devices=2,
    concurrency=16,
    input_tokens=1024,
    output_tokens=512,
)
LIKENESS = Similarity(
    quantity="tpot",
    all=0.05,
    engine=0.05,
    storage=0.05,
    near=0.1,
    accident=0.05,
    reach_octaves=(2, 3, 3, 2),
)


def guess(
    log: float, *wanted: RunFeatures | None, similarity: Similarity = LIKENESS
) -> list[float]:
    return [float(value) for value in guessed_logs([log], [HERE], wanted, similarity)]


@pytest.mark.parametrize("field", ["concurrency", "input_tokens", "output_tokens", "devices"])
def test_a_run_says_less_the_further_away_a_place_is(field: str) -> None:
    places = [
        msgspec.structs.replace(HERE, **{field: getattr(HERE, field) * times})
        for times in (1, 2, 4, 64)
    ]
    found = guess(0.2, *places)
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == len(found)
    assert found[-1] > 0


def test_the_link_of_four_devices_says_little_of_two() -> None:
    """What slowed four devices may be their link, which two share in part."""
    four = msgspec.structs.replace(HERE, devices=4, tpot_doubts=(0.2,))
    two = msgspec.structs.replace(four, devices=2)
    fast_four, fast_two = (msgspec.structs.replace(each, tpot_doubts=()) for each in (four, two))
    slow, sure = (
        guessed_logs([0.2], [anchored], targets, LIKENESS)
        for anchored, targets in ((four, [four, two]), (fast_four, [fast_four, fast_two]))
    )
    assert slow[0] > sure[0]
    assert slow[1] < 0.5 * slow[0] < 0.5 * sure[1] / sure[0]


def test_a_run_says_of_another_what_their_causes_have_in_common() -> None:
    """A slow run that waits for the host says little of one that waits for memory."""
    host, memory = ((0.3, 0.0, 0.0), (0.0, 0.3, 0.0))
    waits, reads = (msgspec.structs.replace(HERE, tpot_doubts=each) for each in (host, memory))
    alike, other = guessed_logs([0.2], [waits], [waits, reads], LIKENESS)
    assert alike > 2 * other > 0
    first_tokens = msgspec.structs.replace(LIKENESS, quantity="ttft")
    assert guessed_logs([0.2], [waits], [reads], first_tokens)[0] > other


def test_runs_that_share_prompts_say_less_of_runs_that_do_not() -> None:
    shared = [msgspec.structs.replace(HERE, cached_fraction=part) for part in (0, 0.3, 0.9)]
    found = guess(0.2, *shared)
    assert found == sorted(found, reverse=True)
    assert found[0] > 1.3 * found[2]


def test_another_storage_and_another_engine_learn_less() -> None:
    other_storage = msgspec.structs.replace(HERE, storage="none")
    other_engine = msgspec.structs.replace(HERE, engine="sglang")
    same, stored, engine = guess(0.2, HERE, other_storage, other_engine)
    assert same > stored > engine > 0


@pytest.mark.parametrize(
    ("asked", "storage"),
    [
        (None, "none"),
        ("auto", "none"),
        ("bfloat16", "none"),
        ("fp16", "none"),
        ("fp8", "none, fp8 cache"),
        ("fp8_e4m3", "none, fp8 cache"),
    ],
)
def test_a_cache_of_another_size_makes_a_storage_of_its_own_however_its_type_is_spelt(
    asked: str | None, storage: str
) -> None:
    shape = load_shape("meta-llama/Meta-Llama-3-8B", catalogue_first=True)
    run = PlannedRun(
        shape=shape,
        node=node(gpu="H100", count=1),
        plan=Plan(model=shape.name, kv_cache_dtype=asked),
        lengths=LengthLaws.fixed(512, 128),
        concurrency=8,
        request_count=80,
    )
    assert run_features([run])[0].storage == storage


def test_the_guess_is_the_textbook_one_where_nothing_is_an_outlier() -> None:
    """One anchor: covariance over variance, with the accident in the variance only."""
    quiet = msgspec.structs.replace(LIKENESS, accident=10.0)
    variance = 3 * 0.05**2 + 0.1**2
    assert guess(0.2, HERE, similarity=quiet)[0] == pytest.approx(
        0.2 * variance / (variance + 100), rel=1e-3
    )


def test_a_run_that_its_neighbours_contradict_counts_little() -> None:
    places = [msgspec.structs.replace(HERE, concurrency=c) for c in (12, 16, 20, 17)]
    (agreed,) = guessed_logs([0.1, 0.1, 0.1], places[:3], [HERE], LIKENESS)
    (disturbed,) = guessed_logs([0.1, 0.1, 0.1, 2.0], places, [HERE], LIKENESS)
    plain = LIKENESS.between(places, places) + LIKENESS.accident**2 * np.eye(4)
    weights = np.linalg.solve(plain, [0.1, 0.1, 0.1, 2.0])
    (believed,) = LIKENESS.between([HERE], places) @ weights
    assert disturbed - agreed < 0.5 * (believed - agreed)


def test_drafts_that_are_often_wrong_are_so_in_other_runs_of_their_method_alone() -> None:
    """The text decides the acceptance: it is shared by runs that share nothing else."""
    far = {"concurrency": 4096, "input_tokens": 8, "storage": "none"}
    plain = msgspec.structs.replace(HERE, **far)
    measured = msgspec.structs.replace(HERE, draft_method="ngram", tpot_draft_doubt=0.5)
    same, other = (
        msgspec.structs.replace(plain, draft_method=method, tpot_draft_doubt=0.5)
        for method in ("ngram", "mtp")
    )
    of_none, of_same, of_other = guessed_logs([0.6], [measured], [plain, same, other], LIKENESS)
    assert of_same > 0.5
    assert of_other == of_none < 0.05
    left = remaining_sd([same, other], [measured], LIKENESS)
    assert left[0] < 0.2
    assert left[1] > 0.5


def scattered(count: int) -> list[RunFeatures]:
    rng = np.random.default_rng(4)
    return [
        RunFeatures(
            engine=str(rng.choice(["vllm", "sglang"])),
            storage=str(rng.choice(["fp8", "none"])),
            devices=int(2 ** rng.integers(0, 4)),
            concurrency=float(2 ** rng.uniform(0, 9)),
            input_tokens=float(2 ** rng.uniform(5, 15)),
            output_tokens=float(2 ** rng.uniform(5, 14)),
        )
        for _ in range(count)
    ]


def test_the_stored_field_can_be_solved_at_any_place() -> None:
    places = scattered(60)
    for quantity in ("tpot", "ttft"):
        covariance = similarity_of(quantity).between(places, [*places, None])
        assert np.linalg.eigvalsh(covariance[:, :60]).min() > -1e-9
        assert (covariance[:, 60] > 0).all()


def test_a_calibration_is_asked_at_a_place_and_answers_differently_there() -> None:
    anchors = [
        Anchor(
            predicted_ttft_ms=100,
            predicted_tpot_ms=10,
            measured_ttft_ms=100 * ratio,
            measured_tpot_ms=10 * ratio,
            place=msgspec.structs.replace(HERE, concurrency=users),
        )
        for users, ratio in ((4, 0.9), (256, 1.3))
    ]
    found = calibrated(anchors)
    few, many = found.at(anchors[0].place, anchors[1].place)
    assert few.tpot_factor < 1 < many.tpot_factor
    assert few.tpot_factor < found.tpot_factor < many.tpot_factor
    assert few.at(HERE) == (few,)
    assert few.tpot_anchors == many.ttft_anchors == 2


def test_what_is_chosen_to_be_measured_leaves_least_doubt_of_all() -> None:
    places = scattered(25)
    first, second = most_informative(places, 2, LIKENESS)
    doubts = {
        other: doubt_after([first, other], places) for other in range(len(places)) if other != first
    }
    assert second == min(doubts, key=lambda other: doubts[other])
    alone = {one: doubt_after([one], places) for one in range(len(places))}
    assert first == min(alone, key=lambda one: alone[one])


def doubt_after(measured: list[int], places: list[RunFeatures]) -> float:
    """Mean standard deviation that is left, by the textbook and not step by step."""
    known = [places[one] for one in measured]
    among = LIKENESS.between(known, known) + LIKENESS.accident**2 * np.eye(len(known))
    towards = LIKENESS.between(known, places)
    explained = (towards * np.linalg.solve(among, towards)).sum(axis=0)
    return float(np.sqrt(np.diag(LIKENESS.between(places, places)) - explained).mean())


def test_doubt_that_is_left_is_the_textbook_one() -> None:
    places = scattered(12)
    left = remaining_sd(places, places[:2], LIKENESS)
    assert left.mean() == pytest.approx(doubt_after([0, 1], places))
    unknown = np.hypot(remaining_sd(places, (), LIKENESS), LIKENESS.accident)
    assert unknown == pytest.approx(LIKENESS.unknown)
    assert (np.diag(LIKENESS.between([None], [None])) == LIKENESS.alone([None])).all()


def test_the_second_choice_is_of_the_other_storage() -> None:
    stored = [
        msgspec.structs.replace(HERE, storage=storage, concurrency=users)
        for storage in ("fp8", "none")
        for users in (4, 8, 16, 32, 64)
    ]
    chosen = most_informative(stored, 2)
    assert {stored[one].storage for one in chosen} == {"fp8", "none"}
    assert {stored[one].concurrency for one in chosen} == {16}


def test_no_more_are_chosen_than_there_are() -> None:
    assert sorted(most_informative(scattered(3), 5)) == [0, 1, 2]
    assert most_informative([], 2) == ()


def test_doubt_is_least_where_it_was_measured_and_that_of_the_textbook_everywhere() -> None:
    places = scattered(12)
    left = remaining_sd(places, places[3:5], LIKENESS)
    assert left.mean() == pytest.approx(doubt_after([3, 4], places))
    before = remaining_sd(places, [], LIKENESS)
    assert (left < before).all()
    assert left[3] < LIKENESS.accident * 1.01


RUN = PlannedRun(
    shape=load_shape("Qwen/Qwen3-4B", catalogue_first=True),
    node=node(gpu="L4", count=8),
    plan=Plan(model="Qwen/Qwen3-4B"),
    lengths=LengthLaws.fixed(1024, 512),
    concurrency=8,
    request_count=80,
)


def place(users: int, **fields: object) -> RunFeatures:
    plan = msgspec.structs.replace(RUN.plan, **fields)
    (found,) = run_features(
        [msgspec.structs.replace(RUN, plan=plan, concurrency=users, request_count=10 * users)]
    )
    return found


def test_copies_that_share_nothing_are_each_a_run_of_their_own() -> None:
    alone = place(8, tensor_parallel=2)
    assert place(16, tensor_parallel=2, replicas=2) == alone
    ranks = place(16, tensor_parallel=2, data_parallel=2)
    assert (ranks.devices, ranks.concurrency) == (alone.devices, alone.concurrency)
    assert place(16, tensor_parallel=4) != alone


@pytest.mark.parametrize(("count", "found"), [(4, 0.75), (100_000, 0.0)])
def test_prompts_are_alike_by_what_a_cache_finds_of_them(count: int, found: float) -> None:
    """Of 100,000 different beginnings a cache has hardly one."""
    lengths = length_moments(LengthLaws.fixed(1024, 512), shared=SharedPrefix(768, count))
    (features,) = run_features([msgspec.structs.replace(RUN, lengths=lengths)])
    assert features.cached_fraction == pytest.approx(found, abs=0.01)


def test_weights_count_as_they_are_loaded() -> None:
    assert place(8).storage == "none"
    assert place(8, quantization="fp8").storage == "fp8"


def test_the_slopes_of_all_causes_make_up_a_time() -> None:
    """Were every part of the law slower alike, so would be the time."""
    run = msgspec.structs.replace(RUN, lengths=LengthLaws.ranged(1024, 512, 0.0))
    runs = [
        msgspec.structs.replace(
            run, plan=msgspec.structs.replace(run.plan, tensor_parallel=degree), concurrency=users
        )
        for degree in (1, 2, 4)
        for users in (1, 8, 64)
    ]
    for slopes in slopes_of(runs):
        assert slopes.sum(axis=1) == pytest.approx(1, abs=0.15)


def test_doubt_about_a_link_grows_with_its_share_of_the_time() -> None:
    link = list(CAUSES).index("link")
    alone, two, four = (place(8, tensor_parallel=degree) for degree in (1, 2, 4))
    assert alone.tpot_doubts[link] == 0
    assert 0 < two.tpot_doubts[link] < four.tpot_doubts[link]
    joined = msgspec.structs.replace(RUN, node=node(gpu="H100", count=8))
    (fabric,) = run_features(
        [msgspec.structs.replace(joined, plan=msgspec.structs.replace(RUN.plan, tensor_parallel=4))]
    )
    assert fabric.tpot_doubts[link] < four.tpot_doubts[link]


def test_what_is_assumed_of_silicon_is_doubted_more() -> None:
    known, assumed = (doubts_of(node(gpu=gpu)) for gpu in ("H100", "V100"))
    slower = dict(zip(CAUSES, assumed / known, strict=True))
    assert slower["compute"] > 1.5
    for cause in ("memory", "kernels"):
        assert slower[cause] == pytest.approx(slower["compute"])
    assert slower["host"] == 1


def test_answers_of_one_token_have_slopes() -> None:
    """A time per token of zero, which they do not have, would have no logarithm."""
    run = msgspec.structs.replace(RUN, lengths=LengthLaws.fixed(1024, 1))
    assert all(np.isfinite(slopes).all() for slopes in slopes_of([run]))
