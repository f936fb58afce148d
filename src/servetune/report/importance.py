"""Importance of settings: how much of a metric's variance each setting is responsible for.

The metric's logarithm is modelled by a term for each setting and, where the trials suffice, for
each pair of settings, by least squares. A setting's share is what the model loses without any term
of it (its total effect, the others' effects taken out), less what as many terms gain by chance.
That is functional analysis of variance on a grid, and stays defined on searches whose trials are
not balanced. Two settings that always changed together cannot be told apart, and say so.

Server settings share the variance that the load leaves, and settings of the load that which the
server settings leave: the load moves every metric by so much that all else would look like nothing.

Notation: X: shape (trials, terms), centred; Y: shape (trials, metrics), centred logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from statistics import NormalDist
from typing import Literal

import msgspec
import numpy as np

from servetune.metrics import interval_of
from servetune.report.quantities import QUANTITIES, quantity_value
from servetune.report.ranking import SweptSettings, devices_of, short_name
from servetune.store.schema import TrialRecord

#: Statistics of a latency that are analysed; others lie between them.
_STATISTICS = ("mean", "median", "p99")
#: Fewest successful trials of an analysis.
LEAST_TRIALS = 4
#: Most trials of an analysis; of more an even sample is taken.
MOST_TRIALS = 2000
#: Most values of a numeric setting that are each a term; of more the trend is.
MOST_LEVELS = 5
#: Most terms of a model, so that a page is made within a second.
_MOST_TERMS = 250
#: Degrees of freedom that a model with terms of pairs leaves at least for the estimate of noise.
_LEAST_FREEDOM = 3
#: Probability of a share by chance below which a setting matters.
_CHANCE = 0.05
#: Relative change of a metric that is none, and the largest that may still be none by noise.
_NEGLIGIBLE, _SMALL = 0.005, 0.05

#: Share of a sum of squares that rounding may leave.
_ROUNDING = 1e-10

_Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Standing = Literal["matters", "nothing", "unclear", "inseparable"]


class LevelEffect(msgspec.Struct, frozen=True, kw_only=True):
    """Metric under one value of a setting, the other settings' effects taken out.

    Attributes:
        value: Value of the setting as text.
        factor: Metric as a multiple of its geometric mean over the trials.
        trial_count: Trials that had the value.
    """

    value: str
    factor: float
    trial_count: int


class SettingImportance(msgspec.Struct, frozen=True, kw_only=True):
    """Importance of one setting for one metric.

    Attributes:
        name: Setting.
        short: Display name.
        side: `server` or `client`.
        share_fraction: Share of the variance that the settings of its side are left with.
        change_fraction: Relative difference that it makes: two standard deviations of its effect,
            for a setting of two values the difference between them.
        change_high_fraction: Largest difference that noise may hide, in the same measure.
        standing: `matters`; `nothing` where the change is negligible; `unclear` where chance
            explains it and may hide more; `inseparable` where another setting always changed with
            it.
        levels: Metric under each value; of a trend under its ends, quartiles and median.
    """

    name: str
    short: str
    side: Literal["server", "client"]
    share_fraction: float
    change_fraction: float
    change_high_fraction: float
    standing: Standing
    levels: tuple[LevelEffect, ...] = ()


class MetricImportance(msgspec.Struct, frozen=True, kw_only=True):
    """Importance of every varied setting for one metric.

    Attributes:
        metric: Quantity.
        statistic: Statistic of it.
        trial_count: Successful trials that have a value.
        settings: Settings, the most important first, those of the server before the load's.
        unexplained_fraction: Share of the whole variance that no term of the model explains.
        with_pairs: Whether pairs of settings have terms of their own.
        reason: Reason why there is nothing, and what would help; empty where there is something.
    """

    metric: str
    statistic: str
    trial_count: int
    settings: tuple[SettingImportance, ...] = ()
    unexplained_fraction: float = 0.0
    with_pairs: bool = False
    reason: str = ""


def all_importances(
    records: Sequence[TrialRecord], names: SweptSettings
) -> tuple[MetricImportance, ...]:
    """Importance of the settings `names` for every quantity with values; failed trials left out.

    Of a latency those of its mean, its median and its 99th percentile.
    """
    metrics = [
        (quantity.name, statistic)
        for quantity in QUANTITIES.values()
        for statistic in (_STATISTICS if quantity.has_statistics else ("mean",))
    ]
    return importances(records, names, metrics)


def importances(
    records: Sequence[TrialRecord], names: SweptSettings, metrics: Iterable[tuple[str, str]]
) -> tuple[MetricImportance, ...]:
    """Importance of the settings `names` for some metrics, each a quantity and its statistic.

    A metric that no trial has is left out, as is one that is not above 0 in all (such as a rate of
    failures), because its changes are not relative ones.
    """
    usable = [record for record in records if record.status == "ok"]
    usable = usable[:: math.ceil(len(usable) / MOST_TRIALS) or 1]
    devices = [devices_of(record) for record in usable]
    alike: dict[tuple[int, ...], list[tuple[str, str, _Floats]]] = {}
    for metric, statistic in metrics:
        found = [
            quantity_value(record.results, metric, statistic, devices=count)
            for record, count in zip(usable, devices, strict=True)
        ]
        places = tuple(place for place, value in enumerate(found) if value is not None)
        values = np.array([value for value in found if value is not None])
        if places and values.min() > 0:
            alike.setdefault(places, []).append((metric, statistic, values))
    made: list[MetricImportance] = []
    for places, group in alike.items():
        made += _of_equal_trials([usable[place] for place in places], names, group)
    order = {name: place for place, name in enumerate(QUANTITIES)}
    return tuple(sorted(made, key=lambda one: order[one.metric]))


def _of_equal_trials(
    records: Sequence[TrialRecord],
    names: SweptSettings,
    group: Sequence[tuple[str, str, _Floats]],
) -> list[MetricImportance]:
    """Importance for metrics that the same trials have, with one model of the settings."""
    model = _model_of(records, names)
    if isinstance(model, str):
        return [
            MetricImportance(
                metric=metric, statistic=statistic, trial_count=len(records), reason=model
            )
            for metric, statistic, _ in group
        ]
    logs = np.stack([np.log(values) for _, _, values in group], axis=1)
    fits = model.fitted(logs - logs.mean(axis=0))
    return [
        fits.importance(column, metric, statistic, _sampling_variance(records, metric, statistic))
        for column, (metric, statistic, _) in enumerate(group)
    ]


def _sampling_variance(records: Sequence[TrialRecord], metric: str, statistic: str) -> float | None:
    """Mean variance of the metric's logarithm by the trials' own intervals; `None` without one."""
    found = []
    for record in records:
        low, high = interval_of(record.results, metric, statistic) or (None, None)
        if low and high and low > 0:
            found.append((math.log(high / low) / 2 / NormalDist().inv_cdf(0.975)) ** 2)
    return float(np.mean(found)) if found else None


class _Setting:
    """Terms of one setting: one for each value but the first, or a trend of a numeric one."""

    def __init__(self, name: str, side: Literal["server", "client"], values: Sequence[object]):
        self.name, self.side = name, side
        self.texts = ["–" if value is None else str(value) for value in values]
        self.levels = list(dict.fromkeys(self.texts))
        numbers = [value for value in values if _is_number(value)]
        self.numbers = np.array(numbers, dtype=float) if len(numbers) == len(values) else None
        if self.numbers is not None:
            self.levels.sort(key=float)
        self.is_trend = self.numbers is not None and len(self.levels) > MOST_LEVELS

    def columns(self, degree: int) -> _Floats:
        """Terms, not centred; `degree` of a trend."""
        if self.is_trend and self.numbers is not None:
            logs = np.log(self.numbers) if self.numbers.min() > 0 else self.numbers
            unit = (logs - logs.mean()) / logs.std()
            return np.stack([unit**power for power in range(1, degree + 1)], axis=1)
        codes = np.array([self.levels.index(text) for text in self.texts])
        terms: _Floats = (codes[:, None] == np.arange(1, len(self.levels))[None, :]).astype(float)
        return terms

    def rows_of_levels(self) -> list[tuple[str, int, int]]:
        """Value, the place of a trial that has it, and how many have; five at most of a trend."""
        shown = self.levels
        if self.is_trend:
            last = len(shown) - 1
            shown = [shown[place] for place in sorted({round(last * q / 4) for q in range(5)})]
        return [(text, self.texts.index(text), self.texts.count(text)) for text in shown]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class _Model:
    """Terms of all settings, and of pairs of them, as columns of one matrix."""

    def __init__(
        self, settings: Sequence[_Setting], columns: Sequence[_Floats], *, pairs: bool
    ) -> None:
        self.settings, self.pairs = settings, pairs
        centred = [each - each.mean(axis=0) for each in columns]
        blocks: list[_Floats] = list(centred)
        owners: list[tuple[int, ...]] = [(place,) for place in range(len(settings))]
        if pairs:
            for one, other in combinations(range(len(settings)), 2):
                product = (centred[one][:, :, None] * centred[other][:, None, :]).reshape(
                    len(centred[one]), -1
                )
                blocks.append(product - product.mean(axis=0))
                owners.append((one, other))
        self.matrix = np.concatenate(blocks, axis=1)
        self._owners = [owner for owner, block in zip(owners, blocks, strict=True)
                        for _ in range(block.shape[1])]  # fmt: skip
        self._gram = self.matrix.T @ self.matrix

    @property
    def trial_count(self) -> int:
        return len(self.matrix)

    def main_columns(self) -> list[int]:
        """Columns of one setting alone."""
        return [at for at, owner in enumerate(self._owners) if len(owner) == 1]

    def columns_of(self, settings: set[int]) -> list[int]:
        """Columns whose every setting is one of these."""
        return [at for at, owner in enumerate(self._owners) if settings.issuperset(owner)]

    def solution(self, columns: Sequence[int], moments: _Floats) -> tuple[_Floats, _Floats, int]:
        """Coefficients, explained sums of squares and rank of the model of some columns.

        Args:
            columns: Columns of the matrix.
            moments: X^T Y of all columns: shape (terms, metrics).
        """
        if not columns:
            return np.zeros((0, moments.shape[1])), np.zeros(moments.shape[1]), 0
        own = moments[columns]
        values, vectors = np.linalg.eigh(self._gram[np.ix_(columns, columns)])
        kept = values > values[-1] * 1e-9
        parts = vectors[:, kept].T @ own
        coefficients = vectors[:, kept] @ (parts / values[kept, None])
        return coefficients, (own * coefficients).sum(axis=0), int(kept.sum())

    def rank(self) -> int:
        zeros = np.zeros((self.matrix.shape[1], 1))
        return self.solution(range(self.matrix.shape[1]), zeros)[2]

    def fitted(self, logs: _Floats) -> _Fits:
        return _Fits(self, logs)


def _model_of(records: Sequence[TrialRecord], names: SweptSettings) -> _Model | str:
    """The richest model that the trials suffice for, or the reason why there is none."""
    count = len(records)
    if not names.server and not names.client:
        return "no setting was varied: sweep one, as with --server-args or a load's list"
    if count < LEAST_TRIALS:
        return f"{count} successful trials are too few: {LEAST_TRIALS} are needed"
    sides: tuple[tuple[Literal["server", "client"], tuple[str, ...]], ...] = (
        ("server", names.server),
        ("client", names.client),
    )
    settings = [
        _Setting(name, side, [getattr(r.config, f"{side}_args").get(name) for r in records])
        for side, each in sides
        for name in each
    ]
    settings = [each for each in settings if len(each.levels) > 1]
    if not settings:
        return "the successful trials differ in no setting"
    for degree, pairs in ((2, True), (2, False), (1, False)):
        columns = [each.columns(degree) for each in settings]
        widths = [each.shape[1] for each in columns]
        terms = sum(widths) + pairs * sum(a * b for a, b in combinations(widths, 2))
        if terms > _MOST_TERMS:
            continue
        model = _Model(settings, columns, pairs=pairs)
        freedom = count - 1 - model.rank()
        if freedom >= (_LEAST_FREEDOM if pairs else 1):
            return model
    return (
        f"{count} successful trials are too few for {len(settings)} varied settings: "
        "more trials, or fewer values of a setting, would tell them apart"
    )


class _Fits:
    """The model fitted to several metrics, whole and without each setting."""

    def __init__(self, model: _Model, logs: _Floats) -> None:
        self._model = model
        moments = model.matrix.T @ logs
        self._total: _Floats = (logs**2).sum(axis=0)
        settings = set(range(len(model.settings)))
        self._whole = _Sums(model, model.columns_of(settings), moments)
        self._without = [
            _Sums(model, model.columns_of(settings - {each}), moments) for each in sorted(settings)
        ]
        main = model.main_columns()
        self._main = _Sums(model, main, moments)
        self._main_without = [
            _Sums(model, [at for at in main if at not in model.columns_of({each})], moments)
            for each in sorted(settings)
        ]
        #: Sum of squares that is left for each side when the other side's terms are taken out.
        self._left = {
            side: self._total
            - _Sums(
                model,
                model.columns_of({s for s in settings if model.settings[s].side != side}),
                moments,
            ).explained
            for side in ("server", "client")
        }

    def importance(
        self, column: int, metric: str, statistic: str, sampling_variance: float | None
    ) -> MetricImportance:
        """Importance of each setting for the metric of one column."""
        model, total = self._model, float(self._total[column])
        count = model.trial_count
        if total <= count * 1e-18:
            return MetricImportance(
                metric=metric,
                statistic=statistic,
                trial_count=count,
                reason="the metric is the same in every trial",
            )
        made = [
            self._setting(place, column, sampling_variance or 0.0)
            for place in range(len(model.settings))
        ]
        made.sort(key=lambda one: (one.side != "server", -one.share_fraction))
        return MetricImportance(
            metric=metric,
            statistic=statistic,
            trial_count=count,
            settings=tuple(made),
            unexplained_fraction=max(0.0, total - float(self._whole.explained[column])) / total,
            with_pairs=model.pairs,
        )

    def _setting(self, place: int, column: int, sampling_variance: float) -> SettingImportance:
        model, total = self._model, float(self._total[column])
        setting, count = model.settings[place], model.trial_count
        whole = _Gain(self._whole, self._without[place], column, total, count)
        main = _Gain(self._main, self._main_without[place], column, total, count)
        noise = max(whole.noise, sampling_variance)
        # The gain of terms that explain nothing is as many times the noise.
        effect = max(0.0, whole.sum_of_squares - whole.terms * noise)
        if effect <= _ROUNDING * total:
            effect = 0.0
        left = float(self._left[setting.side][column])
        high = _change(whole.sum_of_squares + whole.terms * noise, count)
        # Main effects are found among more noise by a test that pairs do not dilute.
        chance = min(1.0, 2 * min(each.chance(sampling_variance) for each in (whole, main)))
        return SettingImportance(
            name=setting.name,
            short=short_name(setting.name),
            side=setting.side,
            share_fraction=effect / left if effect else 0.0,
            change_fraction=_change(effect, count),
            change_high_fraction=high,
            standing="inseparable" if whole.terms == 0 else _standing(high, chance),
            levels=tuple(self._levels(place, column)),
        )

    def _levels(self, place: int, column: int) -> Iterator[LevelEffect]:
        """Effect of each value by the model without pairs."""
        model = self._model
        own = [at for at in self._main.columns if at in set(model.columns_of({place}))]
        places = [self._main.columns.index(at) for at in own]
        effects = model.matrix[:, own] @ self._main.coefficients[places, column]
        for text, row, trials in model.settings[place].rows_of_levels():
            yield LevelEffect(value=text, factor=math.exp(float(effects[row])), trial_count=trials)


class _Sums:
    """Least squares with some columns: coefficients, explained sums of squares and rank."""

    def __init__(self, model: _Model, columns: list[int], moments: _Floats) -> None:
        self.columns = columns
        self.coefficients, self.explained, self.rank = model.solution(columns, moments)


class _Gain:
    """What a model explains of one metric more than the same without a setting."""

    def __init__(
        self, with_it: _Sums, without: _Sums, column: int, total: float, count: int
    ) -> None:
        self.terms = with_it.rank - without.rank
        self.sum_of_squares = max(0.0, float(with_it.explained[column] - without.explained[column]))
        self.freedom = count - 1 - with_it.rank
        rest = max(0.0, total - float(with_it.explained[column]))
        #: Variance of a trial's logarithm; never below what rounding leaves.
        self.noise = max(rest, _ROUNDING * total) / self.freedom

    def chance(self, sampling_variance: float) -> float:
        """Probability of a gain at least so large by chance."""
        if self.terms == 0:
            return 1.0
        noise = max(self.noise, sampling_variance)
        return _chance_of(self.sum_of_squares / self.terms / noise, self.terms, self.freedom)


def _change(sum_of_squares: float, count: int) -> float:
    """Relative difference of two standard deviations of an effect on the logarithm."""
    return math.expm1(2 * math.sqrt(sum_of_squares / count))


def _standing(high: float, chance: float) -> Standing:
    if high <= _NEGLIGIBLE:
        return "nothing"
    if chance < _CHANCE:
        return "matters"
    return "nothing" if high <= _SMALL else "unclear"


def _chance_of(ratio: float, terms: int, freedom: int) -> float:
    """Probability of a variance ratio at least so large by chance (F law, by Paulson)."""
    a, b = 2 / (9 * terms), 2 / (9 * freedom)
    root = ratio ** (1 / 3)
    return 1 - NormalDist().cdf(((1 - b) * root - (1 - a)) / math.sqrt(b * root**2 + a))
