"""Learns from each trial how far the cost model is off, and says which configuration is worth trying next.

The cost model knows the shape of the answer, not its details: how workers disturb each other, what keeping them
saves, whether order matters. Those show in the ratio of measured to predicted throughput. A Gaussian process over
the knobs interpolates the logarithm of that ratio (Rasmussen and Williams, Gaussian Processes for Machine Learning,
algorithm 2.1); the next trial is the one with the largest expected improvement (Jones et al. 1998).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from autotune.config import LoaderConfig
from autotune.search.coordinates import COLUMNS, OWN_COLUMN, Coordinates, Numbers
from autotune.settings import SWITCHES

SIGMA_BIAS: Final = 0.4  # standard deviations of the logarithm of measured over predicted: of the whole model,
SIGMA_WORKERS: Final = 0.3  # along the number of workers,
SIGMA_NUMBER: Final = 0.1  # along another number,
SIGMAS: Final[Mapping[str, float]] = {"batch_size": 0.2}  # and along those of which more is known,
SIGMA_SWITCH: Final = 0.08  # of each switch (pinning, persistence, order, sharing) by itself,
SIGMA_SWITCH_BY_WORKERS: Final = 0.08  # and of the switch at a particular number of workers
SIGMA_OWN: Final = 0.3  # along a knob of the user's own, of which the model knows nothing,
SIGMA_OWN_BY_WORKERS: Final = 0.15  # and along it at a particular number of workers
PRIOR_VARIANCE: Final = (
    SIGMA_BIAS**2
    + SIGMA_WORKERS**2
    + sum(SIGMAS.get(knob.name, SIGMA_NUMBER) ** 2 for knob in COLUMNS[1:])
    + len(SWITCHES) * (SIGMA_SWITCH**2 + SIGMA_SWITCH_BY_WORKERS**2)
)  # of the error at one point, before any measurement; beside it, for each knob of the user's own:
OWN_PRIOR_VARIANCE: Final = SIGMA_OWN**2 + SIGMA_OWN_BY_WORKERS**2
WORKERS_SCALE: Final = 0.7  # doublings of the number of workers over which the error stays alike
OTHER_SCALE: Final = 1.5  # doublings of another number, or choices of a knob of the user's own
MIN_NOISE: Final = 0.04  # of one trial, relative: what the machine's drift alone does
PRIOR_SCALES: Final = (0.5, 1.0, 2.0)  # of all those deviations; the data choose
OUTLIER_Z: Final = -1.5  # standard deviations below what the other measurements say
MIN_OBSERVATIONS_FOR_OUTLIER: Final = 4
FAILURE_SCALE: Final = 0.5  # doublings of workers, queue or batch size within which a failure is expected again


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a configuration is expected to reach; the error is one standard deviation, as a share of it."""

    samples_per_second: float
    relative_error: float


@dataclass(frozen=True, slots=True)
class SpeedupPrediction:
    """By how much a configuration is expected to be faster than another; one standard deviation of its logarithm."""

    ratio: float
    log_error: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """A configuration worth trying; the gain is its expected improvement over the best so far, as a share of it."""

    config: LoaderConfig
    gain: float


class Surrogate:
    """The cost model as corrected by the trials so far."""

    def __init__(self, candidates: Sequence[LoaderConfig], predict: Callable[[LoaderConfig], float]) -> None:
        self._candidates = list(candidates)
        self._predict = predict
        self._place = Coordinates.of(self._candidates)
        self._points = self._place.locate(self._candidates)
        self._prior_variance = PRIOR_VARIANCE + len(self._place.own) * OWN_PRIOR_VARIANCE
        self._logs = np.log([predict(config) for config in self._candidates])
        self._index = {config: number for number, config in enumerate(self._candidates)}
        self._is_open = np.ones(len(self._candidates), dtype=bool)
        self._measured: dict[LoaderConfig, tuple[float, float]] = {}  # logarithm of measured over predicted, its noise
        self._failed: list[LoaderConfig] = []

    def observe(self, config: LoaderConfig, samples_per_second: float, relative_error: float) -> None:
        """Take in what a trial measured, in place of what an earlier trial of the same configuration did.

        The error is the half-width of the 95 % interval, as a share; infinite where unknown.
        """
        self.exclude([config])
        ratio = math.log(samples_per_second / self._predict(config))
        self._measured[config] = ratio, math.hypot(MIN_NOISE, min(relative_error, 0.5) / 2)

    def observe_failure(self, config: LoaderConfig) -> None:
        """Take in that a trial failed: configurations like it are proposed only when the rest promises much less."""
        self.exclude([config])
        self._failed.append(config)

    def exclude(self, configs: Iterable[LoaderConfig]) -> None:
        """Never propose these."""
        for config in configs:
            if config in self._index:
                self._is_open[self._index[config]] = False

    def include_all(self) -> None:
        """Allow every candidate to be proposed: what was learnt of them so far is not a result of this run."""
        self._is_open[:] = True

    def predict(self, configs: Sequence[LoaderConfig]) -> list[Prediction]:
        """Predict throughputs; where one was measured, smoother than the measurement, which was also luck."""
        logs = np.log([self._predict(config) for config in configs])
        mean, deviation = self._infer(self._place.locate(configs))
        return [
            Prediction(samples_per_second=math.exp(log + shift), relative_error=spread)
            for log, shift, spread in zip(logs, mean, deviation, strict=True)
        ]

    def predict_speedups(self, path: Sequence[LoaderConfig]) -> list[SpeedupPrediction]:
        """Predict what each configuration of a path gains over the one before it; errors that they share cancel."""
        logs = np.log([self._predict(config) for config in path])
        mean, covariance = self._infer_jointly(self._place.locate(path))
        gains = np.diff(logs + mean)
        variances = covariance.diagonal()[:-1] + covariance.diagonal()[1:] - 2 * covariance.diagonal(1)
        return [
            SpeedupPrediction(ratio=math.exp(gain), log_error=math.sqrt(max(0.0, variance)))
            for gain, variance in zip(gains, variances, strict=True)
        ]

    def propose(self) -> Proposal | None:
        """Name the configuration with the largest expected improvement; None when every candidate is excluded."""
        open_ones = np.flatnonzero(self._is_open)
        if not len(open_ones):
            return None
        mean, deviation = self._infer(self._points[open_ones])
        heights = self._logs[open_ones] + mean
        gains = _expect_improvement(heights, deviation, self._find_best()) * self._feasibility_weight(
            self._points[open_ones]
        )
        top = int(np.argmax(gains))
        return Proposal(config=self._candidates[open_ones[top]], gain=float(gains[top]))

    def most_doubtful_observation(self, settled: Container[LoaderConfig] = ()) -> Proposal | None:
        """Name the measurement that the others believe least, if it would be the best were they right; none settled.

        Each is compared with what all others predict in its place (Rasmussen and Williams, section 5.4.2). None when
        all measurements are credible.
        """
        seen = list(self._measured)
        if len(seen) < MIN_OBSERVATIONS_FOR_OUTLIER:
            return None
        ratios, noises = self._list_ratios()
        _, factor = _choose_scale(self._place.locate(seen), ratios, noises)
        inverse = _solve(factor, np.eye(len(ratios)))
        deviation = 1 / np.sqrt(np.diag(inverse))
        shortfall = (inverse @ ratios) * deviation  # in standard deviations, negative below what the others say
        heights = np.log([self._predict(config) for config in seen]) + ratios - shortfall * deviation
        gains = _expect_improvement(heights, deviation, self._find_best()) * (shortfall < OUTLIER_Z)
        gains = gains * np.array([config not in settled for config in seen])
        top = int(np.argmax(gains))
        return Proposal(config=seen[top], gain=float(gains[top])) if gains[top] > 0 else None

    def _find_best(self) -> float:
        """Logarithm of the best throughput, smoothed over what was measured; minus infinity before any."""
        if not self._measured:
            return -math.inf
        return max(math.log(found.samples_per_second) for found in self.predict(list(self._measured)))

    def _feasibility_weight(self, points: Numbers) -> Numbers:
        """Chance that a configuration works: small near a failed one, and beyond it where it asks for more."""
        hope = np.ones(len(points))
        for failed in self._place.locate(self._failed):
            beyond = np.maximum(0.0, failed[: len(COLUMNS)] - points[:, : len(COLUMNS)])
            apart = failed[OWN_COLUMN:] - points[:, OWN_COLUMN:]  # of these nobody knows which asks for more
            same = np.exp(-0.5 * ((beyond**2).sum(axis=1) + (apart**2).sum(axis=1)) / FAILURE_SCALE**2)
            hope *= 1 - 0.95 * same
        return hope

    def _infer(self, points: Numbers) -> tuple[Numbers, Numbers]:
        """Mean and standard deviation of the logarithm of measured over predicted at some points."""
        if not self._measured:
            return np.zeros(len(points)), np.sqrt(np.full(len(points), self._prior_variance))
        mean, scale, explained = self._condition(points)
        prior = scale**2 * self._prior_variance
        return mean, np.sqrt(np.maximum(1e-8, prior - (explained**2).sum(axis=0)))

    def _infer_jointly(self, points: Numbers) -> tuple[Numbers, Numbers]:
        """Mean and covariance of the logarithm of measured over predicted at some points."""
        if not self._measured:
            return np.zeros(len(points)), _kernel(points, points)
        mean, scale, explained = self._condition(points)
        return mean, scale**2 * _kernel(points, points) - explained.T @ explained

    def _condition(self, points: Numbers) -> tuple[Numbers, float, Numbers]:
        """Give the mean at some points, the scale of the deviations, and what the measurements explain of them."""
        seen = self._place.locate(list(self._measured))
        ratios, noises = self._list_ratios()
        scale, factor = _choose_scale(seen, ratios, noises)
        across = scale**2 * _kernel(points, seen)
        return across @ _solve(factor, ratios), scale, np.linalg.solve(factor, across.T)

    def _list_ratios(self) -> tuple[Numbers, Numbers]:
        pairs = list(self._measured.values())
        return np.array([ratio for ratio, _ in pairs]), np.array([noise for _, noise in pairs])


def _choose_scale(seen: Numbers, ratios: Numbers, noises: Numbers) -> tuple[float, Numbers]:
    """Choose the deviations under which the measurements are likeliest, and factorize their covariance."""
    return max(
        (_factorize(seen, scale, noises) for scale in PRIOR_SCALES),
        key=lambda pair: _log_marginal_likelihood(ratios, pair[1]),
    )


def _factorize(seen: Numbers, scale: float, noises: Numbers) -> tuple[float, Numbers]:
    covariance = scale**2 * _kernel(seen, seen) + np.diag(noises**2)
    factor: Numbers = np.linalg.cholesky(covariance)
    return scale, factor


def _kernel(points: Numbers, others: Numbers) -> Numbers:
    """Covariance of the error between two lists of points."""
    gaps = points[:, None, :] - others[None, :, :]
    near = np.exp(-0.5 * (gaps[..., 0] / WORKERS_SCALE) ** 2)
    smooth: Numbers = SIGMA_BIAS**2 + SIGMA_WORKERS**2 * near
    for column, knob in reversed(list(enumerate(COLUMNS[1:], start=1))):
        along = SIGMAS.get(knob.name, SIGMA_NUMBER) ** 2 * np.exp(-0.5 * (gaps[..., column] / OTHER_SCALE) ** 2)
        smooth = smooth + (along if knob.needs is None else along * near)
    for column in range(OWN_COLUMN, gaps.shape[-1]):
        along = np.exp(-0.5 * (gaps[..., column] / OTHER_SCALE) ** 2)
        smooth = smooth + along * (SIGMA_OWN**2 + SIGMA_OWN_BY_WORKERS**2 * near)
    alike = (gaps[..., len(COLUMNS) : OWN_COLUMN] == 0).sum(axis=-1)
    covariance: Numbers = smooth + alike * (SIGMA_SWITCH**2 + SIGMA_SWITCH_BY_WORKERS**2 * near)
    return covariance


def _solve(factor: Numbers, values: Numbers) -> Numbers:
    solution: Numbers = np.linalg.solve(factor.T, np.linalg.solve(factor, values))
    return solution


def _log_marginal_likelihood(values: Numbers, factor: Numbers) -> float:
    """Log marginal likelihood, less a constant."""
    return float(-0.5 * values @ _solve(factor, values) - np.log(np.diag(factor)).sum())


def _expect_improvement(heights: Numbers, deviation: Numbers, best: float) -> Numbers:
    """Expected improvement in the logarithm, which is that of the throughput as a share, nearly."""
    if best == -math.inf:
        chances: Numbers = np.exp(heights - heights.max())
        return chances
    z = (heights - best) / deviation
    cumulative = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in z])
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    improvement: Numbers = np.maximum(0.0, deviation * (z * cumulative + density))
    return improvement
