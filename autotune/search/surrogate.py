"""What the trials so far say: a Gaussian process over measured over predicted throughput, and the limits they keep.

The cost model does not know how workers disturb each other. Sources: Rasmussen and Williams, Gaussian Processes for
Machine Learning, algorithm 2.1; expected improvement, Jones et al. 1998.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.config import LoaderConfig
from autotune.protocol.measurement import TrialResult
from autotune.protocol.throughput import estimate
from autotune.search.cost_model import ResourceModel
from autotune.search.plan import Plan
from autotune.search.study import TrialRecord, find_best
from autotune.settings import RANGES, SETTINGS, SWITCHES

Array = NDArray[np.floating]
RatePrediction = Callable[[LoaderConfig], float]

SIGMA_BIAS: Final = 0.4  # standard deviations of the logarithm of measured over predicted: of the whole model,
SIGMA_WORKERS: Final = 0.3  # along the number of workers,
SIGMA_BATCH_SIZE: Final = 0.2  # along the batch size,
SIGMA_NUMBER: Final = 0.1  # along another number,
SIGMA_SWITCH: Final = 0.08  # of each switch (pinning, persistence, order, sharing),
SIGMA_SWITCH_BY_WORKERS: Final = 0.08  # and of the switch at a particular number of workers
WORKERS_SCALE: Final = 0.7  # length scale of the number of workers, in doublings
OTHER_SCALE: Final = 1.5  # length scale of another number, in doublings
MIN_NOISE: Final = 0.04  # relative noise of one trial: the drift of the machine alone
PRIOR_SCALES: Final = (1.0, 0.5, 2.0)  # factors of all standard deviations, chosen by marginal likelihood
OUTLIER_Z: Final = -1.5  # standard deviations below the prediction of the other measurements
MIN_OBSERVATIONS_FOR_OUTLIER: Final = 4
NUMBERS: Final = (SETTINGS["num_workers"], *(one for one in reversed(RANGES) if one.name != "num_workers"))
FAILURE_SCALE: Final = 0.5  # doublings of workers, queue or batch size within which a failure is expected to repeat


class Proposal(NamedTuple):
    """A configuration to try, and its expected improvement over the best as a share of it."""

    config: LoaderConfig
    gain: float


class CandidateTable(NamedTuple):
    """Configurations as columns; features are numbers as doublings, the number of workers first, then the switches."""

    configs: Sequence[LoaderConfig]
    features: Array
    logs: Array  # of the samples per second that the cost model predicts


class Surrogate:
    """The cost model `predict`, in samples per second, as corrected by the last trial of each configuration."""

    def __init__(self, predict: RatePrediction, tried: Collection[TrialRecord] = ()) -> None:
        measured = [one for one in tried if one.is_feasible]
        failed = [one.config for one in tried if one.result is not None and not one.is_feasible]
        self._predict, self._failed = predict, tabulate(failed, predict).features
        self._seen = tabulate([one.config for one in measured], predict)
        self._ratios: Array = np.log([one.samples_per_second for one in measured]) - self._seen.logs
        errors = [0.5 if one.relative_error is None else min(one.relative_error, 0.5) for one in measured]
        noise = np.diag([MIN_NOISE**2 + (error / 2) ** 2 for error in errors])
        kernel = _kernel(self._seen.features, self._seen.features)

        def likelihood(scale: float) -> float:
            covariance = scale**2 * kernel + noise  # twice the logarithm, less a constant:
            return float(-self._ratios @ np.linalg.solve(covariance, self._ratios) - np.linalg.slogdet(covariance)[1])

        self._scale = max(PRIOR_SCALES, key=likelihood)
        self._inverse = np.linalg.inv(self._scale**2 * kernel + noise)
        self._best = max(self._seen.logs + self._infer(self._seen.features)[0], default=-math.inf)

    def predict(self, configs: Sequence[LoaderConfig]) -> list[float]:
        """Predict samples per second; those of measured configurations are smoothed over their neighbours."""
        table = tabulate(configs, self._predict)
        return [math.exp(log) for log in table.logs + self._infer(table.features)[0]]

    def predict_speedups(self, path: Sequence[LoaderConfig]) -> list[tuple[float, float]]:
        """Predict the speedup of each configuration over the one before it, and its relative standard deviation."""
        table = tabulate(path, self._predict)
        mean, across = self._infer(table.features)[0], self._covariance(table.features, self._seen.features)
        covariance = self._covariance(table.features, table.features) - across @ self._inverse @ across.T
        diagonal = covariance.diagonal()
        errors = np.sqrt(np.maximum(0.0, diagonal[:-1] + diagonal[1:] - 2 * covariance.diagonal(1)))
        return list(zip(np.exp(np.diff(table.logs + mean)).tolist(), errors.tolist(), strict=True))

    def propose(self, table: CandidateTable, is_open: Callable[[LoaderConfig], bool]) -> Proposal | None:
        """Return the open candidate with the largest expected improvement; None if there is none."""
        if not table.configs:
            return None
        mean, deviation = self._infer(table.features)
        gains = _expected_improvement(table.logs + mean, deviation, self._best)
        for failed in self._failed:  # near it, and with more of a number, a configuration is likely to fail as well
            below = np.maximum(0.0, failed - table.features)[:, : len(NUMBERS)]
            gains *= 1 - 0.95 * np.exp(-0.5 * (below**2).sum(axis=1) / FAILURE_SCALE**2)
        ranked = (Proposal(table.configs[row], float(gains[row])) for row in np.argsort(-gains, kind="stable"))
        return next((proposal for proposal in ranked if is_open(proposal.config)), None)

    def find_outlier(self, ignored: Collection[LoaderConfig] = ()) -> Proposal | None:
        """Return the slow outlier that would improve most on the best at its leave-one-out prediction (5.4.2)."""
        if len(self._ratios) < MIN_OBSERVATIONS_FOR_OUTLIER:
            return None
        deviation = 1 / np.sqrt(np.diag(self._inverse))
        z = (self._inverse @ self._ratios) * deviation  # negative below the prediction of the others
        gains = _expected_improvement(self._seen.logs + self._ratios - z * deviation, deviation, self._best)
        gains *= (z < OUTLIER_Z) * np.array([config not in ignored for config in self._seen.configs])
        top = int(np.argmax(gains))
        return Proposal(self._seen.configs[top], float(gains[top])) if gains[top] > 0 else None

    def _infer(self, features: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation of the logarithm of measured over predicted throughput."""
        across, prior = self._covariance(features, self._seen.features), self._covariance(features[:1], features[:1])
        variance = prior.sum() - ((across @ self._inverse) * across).sum(axis=1)
        return across @ (self._inverse @ self._ratios), np.sqrt(np.maximum(1e-8, variance))

    def _covariance(self, features: Array, others: Array) -> Array:
        return self._scale**2 * _kernel(features, others)


class TrialModel:
    """The throughput and resource use of configurations, as corrected by the trials so far."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._table = plan, tabulate(plan.candidates, plan.predict)
        self.allows_workers = True
        self.fit([])

    def fit(self, records: Sequence[TrialRecord]) -> None:
        """Fit the model to all trials of a study."""
        self.known = {record.config: record for record in records}  # the last trial of each configuration
        self.best, self.feasible_count = find_best(records), sum(record.is_feasible for record in records)
        self.surrogate = Surrogate(self._plan.predict, self.known.values())
        self._resources = ResourceModel(self._plan.workload)
        for record in records:
            if record.result is not None:
                self._resources = self._resources.learn(record.result)

    def propose(self) -> Proposal | None:
        """Return the untried candidate with the highest expected gain, within the limits; None if all were tried."""
        # After a trial with workers, one without them costs another process; it must be predicted to be the fastest.
        is_late = any(config.dataloader.num_workers for config in self.known)
        best_rate = self.best.samples_per_second if self.best and is_late else 0.0

        def is_open(config: LoaderConfig) -> bool:
            if config in self.known or not self.is_allowed(config):
                return False
            return config.dataloader.num_workers > 0 or self.surrogate.predict([config])[0] > best_rate

        return self.surrogate.propose(self._table, is_open)

    def is_allowed(self, config: LoaderConfig) -> bool:
        """Return whether a configuration is expected to work within the limits."""
        may_start = self.allows_workers or not config.dataloader.num_workers
        return may_start and not self._resources.predict(config).describe_excess(self._plan.budgets)

    def make_record(self, config: LoaderConfig, result: TrialResult | None) -> TrialRecord:
        """Return the record of a trial, with the prediction before it; a skipped trial has no result."""
        predicted, rate, error, is_stopped_early = self.surrogate.predict([config])[0], 0.0, math.inf, False
        if result is None:
            rate, works = predicted, float(not self.allows_workers and config.dataloader.num_workers > 0)
        else:
            works = -1.0 if result.status == "completed" else 1.0
            if result.measurement is not None:
                found = estimate(result.measurement, config, self._plan.request.epochs)
                rate, error = found.samples_per_second, found.relative_error
                is_stopped_early = result.measurement.stopped == "pruned"
        return TrialRecord(
            config=config,
            samples_per_second=rate,
            predicted=predicted,
            relative_error=error if math.isfinite(error) else None,
            is_stopped_early=is_stopped_early,
            constraints=self._resources.predict(config).constraints(self._plan.budgets) | {"works": works},
            result=result,
        )


def tabulate(configs: Sequence[LoaderConfig], predict: RatePrediction) -> CandidateTable:
    """Compute the features and the predictions of some configurations."""
    rows = [
        [
            math.log2(1 + config.dataloader.num_workers),  # no workers are a choice, too
            *(math.log2(getattr(config.dataloader, setting.name) or 1) for setting in NUMBERS[1:]),
            *(setting.read(config) != setting.default for setting in SWITCHES),
        ]
        for config in configs
    ]
    features = np.array(rows, dtype=np.float64).reshape(len(rows), len(NUMBERS) + len(SWITCHES))
    return CandidateTable(configs, features, np.log([predict(config) for config in configs]))


def _kernel(features: Array, others: Array) -> Array:
    gaps = features[:, None, :] - others[None, :, :]
    near = np.exp(-0.5 * (gaps[..., 0] / WORKERS_SCALE) ** 2)
    equal = (gaps[..., len(NUMBERS) :] == 0).sum(axis=-1)
    covariance: Array = SIGMA_BIAS**2 + SIGMA_WORKERS**2 * near
    covariance = covariance + equal * (SIGMA_SWITCH**2 + SIGMA_SWITCH_BY_WORKERS**2 * near)
    for column, setting in enumerate(NUMBERS[1:], start=1):
        sigma = SIGMA_BATCH_SIZE if setting.name == "batch_size" else SIGMA_NUMBER
        along = sigma**2 * np.exp(-0.5 * (gaps[..., column] / OTHER_SCALE) ** 2)
        covariance = covariance + (along if setting.needs is None else along * near)
    return covariance


def _expected_improvement(means: Array, deviation: Array, best: float) -> Array:
    """Return the expected improvement of the logarithm, which is nearly that of the throughput as a share."""
    if best == -math.inf:
        ratios: Array = np.exp(means - means.max())
        return ratios
    z = (means - best) / deviation
    cumulative = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in z])
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    improvement: Array = np.maximum(0.0, deviation * (z * cumulative + density))
    return improvement
