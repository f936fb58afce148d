"""Beliefs about unmeasured points: predictions, what their errors have in common, measurements.

Every quantity that a choice depends on (each objective and each limit) is predicted as a logarithm,
for every point. Its error is a weighted sum of the errors of a few times (time per token, first
token), and the error of a time at a point is

    e(t, n) = factors(t, n) . w + near(t, n) + own(t, n)

with w standard normal and common to all times and points (causes, such as the host or the links of
four devices), `near` a Gaussian field over positions, and `own` a part that no other point shares.
A measurement adds noise. All is Gaussian, so measured points move every other by what both share,
and two points' errors move together: `Beliefs.joint` has the covariance of any of them.

How far `near` and `own` scatter is learned, too: their scale is the most likely one of a grid, so
that predictions that turn out right once the causes are known are trusted sooner. Where
measurements lie further off than all of this allows, every doubt grows (`surprise`): the law does
not describe this machine, and what it says of the other points is worth little.

| symbol | here |
|---|---|
| N, Q, T, F | points, quantities, times, factors |
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Scales of the scatter that are tried, and the standard deviation of their logarithm beforehand.
_SCALES = (0.1, 0.15, 0.25, 0.4, 0.6, 0.8, 1.0, 1.4, 2.0)
_SCALE_SD = 1.0
#: Measured quantities that the doubts beforehand count as, in the growth by surprise.
_COUNTS_AS = 8.0
#: Largest logarithm of measured over predicted that counts whole: beyond it another story begins
#: (a compilation, a smaller limit than stated).
_REACH = 1.5


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What is predicted of all points before any is measured.

    Attributes:
        quantities: Logarithms of the objectives (larger is better) and of each limit's ratio (at
            most zero where it holds), shape (Q, N); NaN where a point cannot run.
        weights: Weight of each time's error in each quantity's, shape (Q, N, T).
        factors: Standard deviation that each common factor brings to a time, shape (T, N, F).
        names: Names of the factors; empty for those that nobody needs to know of.
        near_sd: Standard deviation of the field over positions, shape (T,).
        positions: Place of each point, in units over which it stops being similar, shape
            (T, N, D).
        own_sd: Standard deviation of what no other point shares, shape (T,).
        alike: Number of each point's kind, shape (N,): points of one kind are predicted to do the
            very same, such as under limits that none of them reaches, and share `own`, too.
        noise_sd: Standard deviation of a measurement, shape (Q,).
        objective_count: Number of objectives, which come first among the quantities.
    """

    quantities: Array
    weights: Array
    factors: Array
    names: tuple[str, ...]
    near_sd: Array
    positions: Array
    own_sd: Array
    alike: NDArray[np.int_]
    noise_sd: Array
    objective_count: int = 1


class Factor(msgspec.Struct, frozen=True, kw_only=True):
    """What measurements say of a common factor, in its standard deviations beforehand."""

    name: str
    mean: float
    sd: float


class Beliefs:
    """Predictions after some points were measured.

    Args:
        forecast: Predictions of all points.
        measured: Point -> logarithms of its measured quantities, shape (Q,).
        drift_sd: Standard deviation of the logarithm of each time by drift of the machine between
            measurements, for the first of the times; none if omitted.

    Attributes:
        scale: Factor on the scatter that was expected.
        surprise: Factor on all standard deviations, at least one.
    """

    def __init__(
        self, forecast: Forecast, measured: Mapping[int, Array], drift_sd: Array | None = None
    ) -> None:
        self._forecast, self._drift_sd = forecast, drift_sd
        self._points = np.array(list(measured), dtype=int)
        count = len(forecast.quantities)
        self._of = np.repeat(np.arange(count), len(self._points))
        self._at = np.tile(self._points, count)
        self.scale = self.surprise = 1.0
        if not len(self._points):
            return
        logs = np.array([measured[point] for point in self._points]).T.ravel()
        off = logs - forecast.quantities[self._of, self._at]
        self._off = off / np.hypot(1, off / _REACH)
        self.scale = self._likeliest_scale()
        among = self._covariance(self._of, self._at, self._of, self._at, self.scale)
        self._root = np.linalg.cholesky(among + np.diag(self._noise()))
        self._solved = np.linalg.solve(self._root.T, np.linalg.solve(self._root, self._off))
        whitened = np.linalg.solve(self._root, off)
        spread = (_COUNTS_AS + whitened @ whitened) / (_COUNTS_AS + len(whitened))
        self.surprise = max(1.0, float(np.sqrt(spread)))

    def expected(self) -> tuple[Array, Array]:
        """Mean and standard deviation of every quantity at every point, shape (Q, N) each."""
        forecast = self._forecast
        means, sds = [], []
        everywhere = np.arange(forecast.quantities.shape[1])
        for quantity, predicted in enumerate(forecast.quantities):
            of = np.full(len(everywhere), quantity)
            variance = self._variance(of, everywhere)
            mean = predicted
            if len(self._points):
                towards = self._covariance(self._of, self._at, of, everywhere, self.scale)
                mean = predicted + self._solved @ towards
                variance = variance - (np.linalg.solve(self._root, towards) ** 2).sum(axis=0)
            means.append(mean)
            sds.append(self.surprise * np.sqrt(np.maximum(variance, 1e-12)))
        return np.array(means), np.array(sds)

    def joint(self, points: NDArray[np.int_]) -> tuple[Array, Array]:
        """Means, shape (Q * points,), and covariance of all quantities at some points."""
        count = len(self._forecast.quantities)
        of, at = np.repeat(np.arange(count), len(points)), np.tile(points, count)
        mean = self._forecast.quantities[of, at]
        covariance = self._covariance(of, at, of, at, self.scale)
        if len(self._points):
            towards = self._covariance(self._of, self._at, of, at, self.scale)
            mean = mean + self._solved @ towards
            reached = np.linalg.solve(self._root, towards)
            covariance = covariance - reached.T @ reached
        return mean, self.surprise**2 * covariance

    def factors(self) -> tuple[Factor, ...]:
        """What is known of each factor that has a name."""
        names = self._forecast.names
        mean, left = np.zeros(len(names)), np.ones(len(names))
        if len(self._points):
            towards = self._loadings(self._of, self._at)
            mean = self._solved @ towards
            left = 1 - (np.linalg.solve(self._root, towards) ** 2).sum(axis=0)
        return tuple(
            Factor(name=name, mean=float(m), sd=self.surprise * float(np.sqrt(max(0.0, v))))
            for name, m, v in zip(names, mean, left, strict=True)
            if name
        )

    def _likeliest_scale(self) -> float:
        def log_likelihood(scale: float) -> float:
            among = self._covariance(self._of, self._at, self._of, self._at, scale)
            root = np.linalg.cholesky(among + np.diag(self._noise()))
            whitened = np.linalg.solve(root, self._off)
            prior = (np.log(scale) / _SCALE_SD) ** 2 / 2
            return float(-(whitened @ whitened) / 2 - np.log(np.diag(root)).sum() - prior)

        return max(_SCALES, key=log_likelihood)

    def _noise(self) -> Array:
        noise = self._forecast.noise_sd[self._of] ** 2
        if self._drift_sd is not None:
            weights = self._forecast.weights[self._of, self._at, : len(self._drift_sd)]
            noise = noise + (weights @ self._drift_sd) ** 2
        return np.asarray(noise)

    def _loadings(self, of: NDArray[np.int_], at: NDArray[np.int_]) -> Array:
        """Factors of quantities at points, shape (pairs, F)."""
        forecast = self._forecast
        return np.asarray(
            np.einsum("nt,tnf->nf", forecast.weights[of, at], forecast.factors[:, at])
        )

    def _covariance(
        self,
        of: NDArray[np.int_],
        at: NDArray[np.int_],
        others_of: NDArray[np.int_],
        others_at: NDArray[np.int_],
        scale: float,
    ) -> Array:
        """Covariance of errors before any measurement, shape (pairs, others)."""
        forecast = self._forecast
        found = self._loadings(of, at) @ self._loadings(others_of, others_at).T
        same = forecast.alike[at][:, None] == forecast.alike[others_at][None]
        for time, positions in enumerate(forecast.positions):
            here, there = (
                forecast.weights[of, at, time],
                forecast.weights[others_of, others_at, time],
            )
            mine, others = positions[at], positions[others_at]
            apart = (mine**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)[None]
            apart = np.maximum(apart - 2 * mine @ others.T, 0.0)
            field = forecast.near_sd[time] ** 2 * np.exp(-apart / 2)
            field = field + forecast.own_sd[time] ** 2 * same
            found += scale**2 * here[:, None] * there[None] * field
        return np.asarray(found)

    def _variance(self, of: NDArray[np.int_], at: NDArray[np.int_]) -> Array:
        forecast = self._forecast
        own = (forecast.near_sd**2 + forecast.own_sd**2) * self.scale**2
        return np.asarray(
            (self._loadings(of, at) ** 2).sum(axis=1) + forecast.weights[of, at] ** 2 @ own
        )


@functools.cache
def normals(count: int, size: int, seed: int) -> Array:
    """Standard normal numbers, shape (count, size), in pairs that cancel each other."""
    half = np.random.default_rng(seed).standard_normal(((count + 1) // 2, size))
    return np.concatenate([half, -half])[:count]


def sampled(mean: Array, covariance: Array, count: int, seed: int) -> Array:
    """Draws from a normal distribution, shape (count, len(mean))."""
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(mean + normals(count, len(mean), seed) @ root.T)
