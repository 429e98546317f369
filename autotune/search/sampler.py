"""Optuna samplers of a study of configurations: the cost model as corrected by its trials, and Optuna's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import optuna

from autotune.config import LoaderConfig
from autotune.request import SEED_COUNT
from autotune.search.plan import Plan
from autotune.search.study import make_distributions, read_records
from autotune.search.surrogate import Observation, Proposal, Surrogate
from autotune.search.trial_record import TrialRecord, find_best
from autotune.trial.measurement import TrialResult

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

STARTUP_TRIALS: Final = 8  # random trials after the seeds, before TPE and GP have enough to learn from

Observations = Mapping[LoaderConfig, Observation]


class TrialModel:
    """The models of throughput and resource use as corrected by the trials of a study.

    Args:
        plan: The plan of the run.
        records: The trials; of a configuration that was measured again the last one counts.
        prior: Measurements of an earlier run; their configurations may still be proposed.
        allows_workers: Whether configurations with workers may be proposed.
    """

    def __init__(
        self, plan: Plan, records: Sequence[TrialRecord], prior: Observations, *, allows_workers: bool
    ) -> None:
        self._plan = plan
        self._allows_workers = allows_workers
        self._resources = plan.resource_model()
        self.records = [record for record in records if record.status != "repeated"]
        self.known = {record.config: record for record in self.records}
        self.best = find_best(self.records)
        self.feasible_count = sum(record.is_feasible for record in self.records)
        for one in self.records:
            if one.result is not None:
                peaks = one.result.peak_host_bytes, one.result.peak_shm_bytes, one.peak_gpu_bytes
                self._resources = self._resources.learn(one.config, *peaks)
        measured = {
            config: Observation(one.samples_per_second, math.inf if one.relative_error is None else one.relative_error)
            for config, one in self.known.items()
            if one.is_feasible
        }
        failed = [config for config, one in self.known.items() if one.result is not None and not one.is_feasible]
        self.surrogate = Surrogate(plan.predict, {**prior, **measured}, failed)

    def propose(self) -> Proposal | None:
        """Return the most promising candidate that is expected to keep the limits; None if all were tried."""
        table = self._plan.table
        is_open = np.ones(len(table.configs), dtype=bool)
        is_open[[table.index[config] for config in self.known if config in table.index]] = False
        while (proposal := self.surrogate.propose(table, is_open)) is not None and not self.is_legal(proposal.config):
            is_open[table.index[proposal.config]] = False
        return proposal

    def is_legal(self, config: LoaderConfig) -> bool:
        """Return whether a configuration is expected to work within the limits."""
        if not self._allows_workers and config.dataloader.num_workers:
            return False
        return self._resources.fits(config, self._plan.budgets)

    def expected(self) -> dict[LoaderConfig, float]:
        """Return the expected samples per second of each configuration that works."""
        configs = [config for config, record in self.known.items() if record.is_feasible]
        found = self.surrogate.predict(configs)
        return {config: one.samples_per_second for config, one in zip(configs, found, strict=True)}

    def make_record(self, number: int, config: LoaderConfig, result: TrialResult | None) -> TrialRecord:
        """Return the record of a trial, with the prediction before it; a skipped trial has no result."""
        predicted = self.surrogate.predict([config])[0].samples_per_second
        found = self._plan.estimate(result) if result is not None else None
        works = -1.0 if result is not None and result.kind == "completed" else 1.0
        if result is None:
            works = float(not self._allows_workers and config.dataloader.num_workers > 0)
        return TrialRecord(
            number=number,
            config=config,
            status="skipped" if result is None else "measured",
            samples_per_second=found.samples_per_second if found else 0.0 if result else predicted,
            predicted=predicted,
            relative_error=found.relative_error if found and math.isfinite(found.relative_error) else None,
            constraints=self._resources.predict(config).constraints(self._plan.budgets) | {"works": works},
            result=result,
            peak_gpu_bytes=result.measurement.peak_gpu_bytes if result and result.measurement else 0,
        )


class CostModelSampler(optuna.samplers.BaseSampler):
    """Proposes the candidate with the largest expected improvement, given the trials of the study.

    Args:
        plan: The plan of the run.
        prior: Measurements of an earlier run.
        allows_workers: Returns whether configurations with workers may be proposed.
    """

    def __init__(
        self, plan: Plan, prior: Observations | None = None, allows_workers: Callable[[], bool] = lambda: True
    ) -> None:
        self._plan = plan
        self._prior = prior or {}
        self._allows_workers = allows_workers
        self._random = optuna.samplers.RandomSampler(seed=plan.request.seed)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the settings that are proposed together: all of them."""
        return make_distributions(self._plan.space)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Propose a value for each setting."""
        records = read_records(study, self._plan.space)
        proposal = TrialModel(self._plan, records, self._prior, allows_workers=self._allows_workers()).propose()
        return {} if proposal is None else self._plan.space.to_params(proposal.config)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Draw a random value if there is no proposal."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)


def make_sampler(
    plan: Plan, known: int = 0, prior: Observations | None = None, allows_workers: Callable[[], bool] = lambda: True
) -> optuna.samplers.BaseSampler:
    """Return the sampler that the request asks for.

    The number of known trials changes the seed, so that a continued run does not draw the same configurations again.
    """
    name, seed = plan.request.sampler, (plan.request.seed + known) % SEED_COUNT
    if name == "model":
        return CostModelSampler(plan, prior, allows_workers)
    if name == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    if name == "gp":
        return optuna.samplers.GPSampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True)
