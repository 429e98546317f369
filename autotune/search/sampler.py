"""The sampler of the study: proposes the next configuration from the trials so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import optuna

from autotune.config import LoaderConfig
from autotune.planning.plan import Plan
from autotune.planning.resources import ResourceModel
from autotune.protocol.measurement import TrialResult
from autotune.request import SEED_COUNT
from autotune.search.study import TrialRecord, find_best, make_distributions, read_records
from autotune.search.surrogate import Proposal, Surrogate, tabulate

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

STARTUP_TRIALS: Final = 8  # completed trials, the queued ones included, before TPE and GP stop drawing at random


class TrialModel:
    """The throughput and resource use of configurations, as corrected by the trials so far.

    `known` has the last trial of each configuration, `feasible_count` counts the trials that completed.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan, self._table = plan, tabulate(plan.candidates, plan.predict)
        self.allows_workers = True
        self.fit([])

    def fit(self, records: Sequence[TrialRecord]) -> None:
        """Fit the model to all trials of a study."""
        self.known = {record.config: record for record in records}
        self.best, self.feasible_count = find_best(records), sum(record.is_feasible for record in records)
        self.surrogate = Surrogate(self._plan.predict, self.known.values())
        self._resources = ResourceModel(self._plan.workload)
        for one in records:
            if one.result is not None:
                gpu_bytes = one.result.measurement.peak_gpu_bytes if one.result.measurement else 0
                peaks = one.result.peak_host_bytes, one.result.peak_shm_bytes, gpu_bytes
                self._resources = self._resources.learn(one.config, *peaks)

    def propose(self) -> Proposal | None:
        """Return the most promising candidate that is expected to keep the limits; None if all were tried.

        After a trial with workers, one without them costs another process; it must be predicted to be the fastest.
        """
        is_late = self.best is not None and any(config.dataloader.num_workers for config in self.known)

        def is_open(config: LoaderConfig) -> bool:
            if config in self.known or not self.is_allowed(config):
                return False
            if not is_late or config.dataloader.num_workers or self.best is None:
                return True
            return self.surrogate.predict([config])[0].samples_per_second > self.best.samples_per_second

        return self.surrogate.propose(self._table, is_open)

    def is_allowed(self, config: LoaderConfig) -> bool:
        """Return whether a configuration is expected to work within the limits."""
        may_start = self.allows_workers or not config.dataloader.num_workers
        return may_start and self._resources.fits(config, self._plan.budgets)

    def expected(self) -> dict[LoaderConfig, float]:
        """Return the expected samples per second of each configuration that works, smoothed over its neighbours."""
        configs = [config for config, record in self.known.items() if record.is_feasible]
        found = self.surrogate.predict(configs)
        return {config: one.samples_per_second for config, one in zip(configs, found, strict=True)}

    def make_record(self, config: LoaderConfig, result: TrialResult | None) -> TrialRecord:
        """Return the record of a trial, with the prediction before it; a skipped trial has no result."""
        predicted = self.surrogate.predict([config])[0].samples_per_second
        found = None if result is None else self._plan.estimate(result)
        error = found.relative_error if found else math.inf
        if result is None:
            rate, works = predicted, float(not self.allows_workers and config.dataloader.num_workers > 0)
        else:
            rate, works = found.samples_per_second if found else 0.0, -1.0 if result.kind == "completed" else 1.0
        return TrialRecord(
            config=config,
            status="skipped" if result is None else "measured",
            samples_per_second=rate,
            predicted=predicted,
            relative_error=error if math.isfinite(error) else None,
            constraints=self._resources.predict(config).constraints(self._plan.budgets) | {"works": works},
            result=result,
        )


class CostModelSampler(optuna.samplers.RandomSampler):
    """Proposes the candidate with the largest expected improvement; draws at random if no candidate is left."""

    def __init__(self, plan: Plan, model: TrialModel) -> None:
        super().__init__(plan.request.seed)
        self._space, self._model = plan.space, model

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the settings that are proposed together: all of them."""
        return make_distributions(self._space)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Propose a value for each setting."""
        self._model.fit(read_records(study, self._space))
        proposal = self._model.propose()
        return {} if proposal is None else self._space.to_params(proposal.config)


def make_sampler(plan: Plan, model: TrialModel, known: int = 0) -> optuna.samplers.BaseSampler:
    """Return the sampler that the request asks for.

    The number of known trials changes the seed, so that a continued run does not draw the same configurations again.
    """
    name, seed = plan.request.sampler, (plan.request.seed + known) % SEED_COUNT
    if name == "model":
        return CostModelSampler(plan, model)
    if name == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    if name == "gp":
        return optuna.samplers.GPSampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True)
