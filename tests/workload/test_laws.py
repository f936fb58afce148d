import json
import math
from statistics import NormalDist

import msgspec
import numpy as np
import pytest

from servetune.errors import InputError, UnknownName
from servetune.workload.laws import (
    Always,
    ByInput,
    Empirical,
    Law,
    LogNormal,
    Normal,
    Table,
    Uniform,
    draw_pairs,
    format_length,
    parse_law,
)


def drawn(text, count=20_000, seed=3):
    return parse_law(text).draw(count, np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("text", "law"),
    [
        ("1024", Always(1024)),
        (1024, Always(1024)),
        ("fixed:64", Always(64)),
        ("kind=uniform,min=512,max=1536", Uniform(512, 1536)),
        ("kind=uniform,mean=1000,ratio=0.25,as=vllm", Uniform(750, 1250)),
        ("kind=uniform,max=1000,ratio=0.25,as=sglang", Uniform(250, 1000)),
        ("kind=normal,mean=1024,std=200,min=16,max=4096", Normal(1024, 200, 16, 4096)),
        ("kind = normal, mean = 10 , std = 2", Normal(10, 2)),
        ("kind=lognormal,mean=800,std=600,max=8192", LogNormal.of_mean(800, 600, most=8192)),
        ("kind=lognormal,median=600,sigma=0.7", LogNormal(600, 0.7)),
        ("kind=quantiles,points=[(0,4),(0.5,60),(1,4000)]", Table(((0, 4), (0.5, 60), (1, 4000)))),
        ("kind=empirical,tokens=[12,40,40]", Empirical((12, 40, 40))),
        (
            "kind=by_input,tables=[[(0,4),(1,9)],[(0,60),(1,90)]]",
            ByInput((((0, 4), (1, 9)), ((0, 60), (1, 90)))),
        ),
        ("kind=fixed,tokens=64", Always(64)),
        ("uniform:min=512,max=1536", Uniform(512, 1536)),
        ("uniform:mean=1000,ratio=0.25,as=vllm", Uniform(750, 1250)),
        ("uniform:max=1000,ratio=0.25,as=sglang", Uniform(250, 1000)),
        ("normal:mean=1024,std=200,min=16,max=4096", Normal(1024, 200, 16, 4096)),
        ("normal: mean=10 , std=2", Normal(10, 2)),
        ("lognormal:median=600,sigma=0.7", LogNormal(600, 0.7)),
        ("quantiles:0=4/0.5=60/1=4000", Table(((0, 4), (0.5, 60), (1, 4000)))),
        ("empirical:12/40/40", Empirical((12, 40, 40))),
    ],
)
def test_the_grammar_means_these_laws_and_json_keeps_them(text, law):
    assert parse_law(text) == law == parse_law(format_length(law))
    assert parse_law(json.loads(msgspec.json.encode(law))) == law
    assert msgspec.json.decode(msgspec.json.encode(law), type=Law) == law


def test_a_uniform_law_reaches_both_ends_evenly():
    values, counts = np.unique(drawn("uniform:min=3,max=6"), return_counts=True)
    assert values.tolist() == [3, 4, 5, 6]
    assert np.all(np.abs(counts / 20_000 - 0.25) < 0.02)  # 6 standard deviations of a share


def test_a_normal_law_has_its_moments_and_quantiles():
    tokens = drawn("normal:mean=1024,std=200")
    assert abs(tokens.mean() - 1024) < 0.5  # stratified: far closer than 200 / sqrt(20,000)
    assert abs(tokens.std() - 200) < 1
    for p in (0.01, 0.25, 0.9):
        assert abs(np.quantile(tokens, p) - NormalDist(1024, 200).inv_cdf(p)) < 2


def test_limits_cut_the_law_and_do_not_heap_it_up():
    tokens = drawn("normal:mean=100,std=50,min=60,max=140")
    assert tokens.min() == 60
    assert tokens.max() == 140
    assert np.mean(tokens == 140) < 0.02  # swept onto the limit it would be a fifth
    assert abs(tokens.mean() - 100) < 0.2


def test_a_log_normal_law_has_the_mean_and_deviation_that_it_says():
    tokens = drawn("lognormal:mean=800,std=600", 200_000)
    assert tokens.mean() == pytest.approx(800, rel=0.003)
    assert tokens.std() == pytest.approx(600, rel=0.03)
    logs = np.log(drawn("lognormal:median=600,sigma=0.7", 50_000))
    assert logs.mean() == pytest.approx(math.log(600), abs=0.002)
    assert logs.std() == pytest.approx(0.7, abs=0.005)


def test_a_table_is_met_at_its_points():
    tokens = drawn("quantiles:0=4/0.5=60/1=4000")
    assert np.median(tokens) == pytest.approx(60, abs=1)
    assert tokens.min() >= 4
    assert tokens.max() <= 4000


def test_an_empirical_law_uses_all_equally_often_and_neighbours_independently():
    tokens = drawn("empirical:1/2/9", 3001)
    counts = [int((tokens == each).sum()) for each in (1, 2, 9)]
    assert sorted(counts) == [1000, 1000, 1001]
    sums = tokens[:3000].reshape(-1, 6).sum(axis=1)  # constant if rounds were drawn one by one
    assert sums.var() == pytest.approx(6 * tokens.var(), rel=0.2)


def test_lengths_come_from_a_file_and_its_errors_name_the_line(tmp_path):
    path = tmp_path / "lengths.txt"
    path.write_text("12\n\n800\n")
    assert parse_law(f"empirical:path={path}") == Empirical((12, 800))
    path.write_text("12\nmany\n")
    with pytest.raises(InputError, match="line 2 'many' is not a number"):
        parse_law(f"empirical:path={path}")
    with pytest.raises(InputError, match="cannot read lengths"):
        parse_law(f"empirical:path={tmp_path / 'none'}")


def test_small_samples_stay_true_and_the_seed_decides():
    assert abs(drawn("normal:mean=130,std=40,min=40,max=220", 50).mean() - 130) < 3
    assert np.array_equal(drawn("normal:mean=9,std=2", 50), drawn("normal:mean=9,std=2", 50))
    assert not np.array_equal(
        drawn("normal:mean=9,std=2", 50), drawn("normal:mean=9,std=2", 50, seed=4)
    )
    for text in ("7", "normal:mean=9,std=0", "quantiles:0=1/1=2", "empirical:3"):
        assert drawn(text, 0).shape == (0,)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0", "1 token or more"),
        ("ten", "'ten' is not a number"),
        ("1.5", "not a whole number"),
        ("", "is not a number"),
        ("normal:mean=10", "needs std"),
        ("normal:mean=10,std=2,std=3", "std is given twice"),
        ("normal:mean=-4,std=1", "positive mean"),
        ("normal:mean=10,std=1,min=500", "rarely draws"),
        ("uniform:min=9,max=3", "from 9 to 3"),
        ("uniform:mean=9,ratio=0.5", "one thing to vLLM and another to SGLang"),
        ("uniform:mean=9,ratio=2,as=vllm", "from 0 to 1"),
        ("uniform:mean=9,ratio=0.5,as=sglang", "vLLM and another to SGLang"),
        ("quantiles:0.5=4/1=3", "probability 0 to 1"),
        ("lognormal:mean=10,sigma=1", "has no 'mean'|needs median"),
    ],
)
def test_what_has_no_meaning_is_refused(text, problem):
    with pytest.raises(InputError, match=problem) as error:
        parse_law(text)
    assert error.value.hint or "ratio" in problem or "from 0 to 1" in problem


def test_unknown_words_name_the_known_ones():
    with pytest.raises(UnknownName, match="gauss"):
        parse_law("gauss:mean=3")
    with pytest.raises(InputError, match="has no 'sd'") as error:
        parse_law("normal:mean=3,sd=1")
    assert "std" in error.value.hint


def test_a_normal_law_without_limits_keeps_its_mean_where_its_deviation_is_wide():
    tokens = drawn("kind=normal,mean=200,std=150")
    assert tokens.mean() == pytest.approx(200, abs=0.5)
    assert (tokens.min(), tokens.max()) == (1, 399)
    ends = np.isin(tokens, (1, 399)).mean()
    assert ends < 0.01  # what lies beyond is drawn again, not moved onto the limits
    assert drawn("kind=normal,mean=200,std=150,min=1").mean() == pytest.approx(227, abs=1)


class TestByInput:
    law = ByInput(tables=(((0, 4), (1, 9)), ((0, 60), (1, 90))))

    def test_longer_prompts_have_the_later_tables_answers(self):
        inputs, outputs = draw_pairs(Uniform(1, 1000), self.law, 4000, np.random.default_rng(1))
        middle = np.median(inputs)
        assert outputs[inputs < middle].max() <= 9
        assert outputs[inputs > middle].min() >= 60

    def test_equal_prompts_have_every_answer_and_alone_it_is_their_mixture(self):
        same = self.law.given(np.full(1000, 50), np.random.default_rng(1))
        alone = self.law.draw(1000, np.random.default_rng(2))
        for drawn_ in (same, alone):
            assert (drawn_ > 50).sum() == 500
        assert (alone[:500] > 50).sum() == pytest.approx(250, abs=60)  # in no order

    def test_no_table_is_refused(self):
        with pytest.raises(InputError, match="tables is empty"):
            ByInput(())
