"""What Optuna sees of the search: the sampler of a study, which proposes the next configuration from its trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import optuna

from autotune.config import LoaderConfig
from autotune.planning.plan import Plan
from autotune.planning.resources import ResourceModel
from autotune.protocol.measurement import TrialResult
from autotune.request import SEED_COUNT
from autotune.search.study import make_distributions, read_records
from autotune.search.surrogate import Observation, Proposal, Surrogate
from autotune.search.trial_record import TrialRecord, find_best

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

STARTUP_TRIALS: Final = 8  # completed trials, the queued ones included, before TPE and GP stop drawing at random


class TrialModel:
    """The throughput and resource use of configurations, as corrected by the trials so far.

    Attributes:
        allows_workers: Whether configurations with workers may be proposed.
        known: The last trial of each configuration.
        best: The fastest trial.
        feasible_count: Number of trials that completed.
        surrogate: The Gaussian process over the throughput.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.allows_workers = True
        self.fit([])

    def fit(self, records: Sequence[TrialRecord]) -> None:
        """Fit the model to all trials of a study."""
        tried = [record for record in records if record.status != "repeated"]
        self.known = {record.config: record for record in tried}
        self.best, self.feasible_count = find_best(tried), sum(record.is_feasible for record in tried)
        self._resources = ResourceModel(self._plan.workload)
        for one in tried:
            if one.result is not None:
                peaks = one.result.peak_host_bytes, one.result.peak_shm_bytes, one.peak_gpu_bytes
                self._resources = self._resources.learn(one.config, *peaks)
        observed = {
            config: Observation(one.samples_per_second, math.inf if one.relative_error is None else one.relative_error)
            for config, one in self.known.items()
            if one.is_feasible
        }
        failed = [config for config, one in self.known.items() if one.result is not None and not one.is_feasible]
        self.surrogate = Surrogate(self._plan.predict, observed, failed)

    def propose(self) -> Proposal | None:
        """Return the most promising candidate that is expected to keep the limits; None if all were tried.

        After a trial with workers, one without them costs another process; it must be predicted to be the fastest.
        """
        table = self._plan.table
        is_open = np.ones(len(table.configs), dtype=bool)
        is_open[[table.index[config] for config in self.known if config in table.index]] = False
        if self.best is not None and any(config.dataloader.num_workers for config in self.known):
            alone = [config for config in table.configs if not config.dataloader.num_workers]
            for config, expected in zip(alone, self.surrogate.predict(alone), strict=True):
                is_open[table.index[config]] &= expected.samples_per_second > self.best.samples_per_second
        return self.surrogate.propose(table, is_open, self.is_allowed)

    def is_allowed(self, config: LoaderConfig) -> bool:
        """Return whether a configuration is expected to work within the limits."""
        if not self.allows_workers and config.dataloader.num_workers:
            return False
        return self._resources.fits(config, self._plan.budgets)

    def expected(self) -> dict[LoaderConfig, float]:
        """Return the expected samples per second of each configuration that works, smoothed over its neighbours."""
        configs = [config for config, record in self.known.items() if record.is_feasible]
        found = self.surrogate.predict(configs)
        return {config: one.samples_per_second for config, one in zip(configs, found, strict=True)}

    def make_record(self, config: LoaderConfig, result: TrialResult | None) -> TrialRecord:
        """Return the record of a trial, with the prediction before it; a skipped trial has no result."""
        predicted = self.surrogate.predict([config])[0].samples_per_second
        constraints = self._resources.predict(config).constraints(self._plan.budgets)
        if result is None:
            constraints["works"] = float(not self.allows_workers and config.dataloader.num_workers > 0)
            skipped: dict[str, Any] = {"status": "skipped", "samples_per_second": predicted, "predicted": predicted}
            return TrialRecord(config=config, constraints=constraints, **skipped)
        constraints["works"] = -1.0 if result.kind == "completed" else 1.0
        found = self._plan.estimate(result)
        return TrialRecord(
            config=config,
            status="measured",
            samples_per_second=found.samples_per_second if found else 0.0,
            predicted=predicted,
            relative_error=found.relative_error if found and math.isfinite(found.relative_error) else None,
            constraints=constraints,
            result=result,
            peak_gpu_bytes=result.measurement.peak_gpu_bytes if result.measurement else 0,
        )


class CostModelSampler(optuna.samplers.BaseSampler):
    """Proposes the candidate with the largest expected improvement over the cost model as corrected by the trials."""

    def __init__(self, plan: Plan, model: TrialModel) -> None:
        self._space, self._model = plan.space, model
        self._random = optuna.samplers.RandomSampler(seed=plan.request.seed)

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

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Draw a random value if there is no proposal."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)


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
