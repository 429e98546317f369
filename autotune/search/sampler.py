"""Optuna samplers of a study of configurations: the cost model corrected by the trials, and Optuna's own."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import optuna

from autotune.config import LoaderConfig
from autotune.errors import UsageError
from autotune.request import SEED_COUNT
from autotune.search.plan import Plan
from autotune.search.resources import describe_violations
from autotune.search.study import NO_WORKERS, make_distributions, read_records
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
        self, plan: Plan, records: Sequence[TrialRecord], prior: Observations, *, allows_workers: bool = True
    ) -> None:
        self._plan = plan
        self._allows_workers = allows_workers
        self.records = [record for record in records if record.status != "repeated"]
        self.known = {record.config: record for record in self.records}
        self.best = find_best(self.records)
        self._resources = plan.resource_model()
        for record in self.records:
            if (result := record.result) is not None:
                peaks = result.peak_host_bytes, result.peak_shm_bytes, record.peak_gpu_bytes
                self._resources = self._resources.learn(record.config, *peaks)
        measured = {
            config: Observation(record.samples_per_second, record.relative_error or math.inf)
            for config, record in self.known.items()
            if record.is_feasible
        }
        failed = [config for config, one in self.known.items() if one.result is not None and not one.is_feasible]
        self.surrogate = Surrogate(plan.predict, {**prior, **measured}, failed)

    def count_feasible(self) -> int:
        """Return the number of trials that completed."""
        return sum(record.is_feasible for record in self.records)

    def propose(self) -> Proposal | None:
        """Return the most promising candidate that is expected to keep the limits; None if all were tried."""
        table = self._plan.table
        is_open = np.ones(len(table.configs), dtype=bool)
        is_open[[table.index[config] for config in self.known if config in table.index]] = False
        if not self._allows_workers:
            is_open &= table.features[:, 0] == 0
        while (proposal := self.surrogate.propose(table, is_open)) is not None:
            if not self.rejection_reasons(proposal.config):
                return proposal
            is_open[table.index[proposal.config]] = False
        return None

    def rejection_reasons(self, config: LoaderConfig) -> tuple[str, ...]:
        """Return why a configuration is not worth a trial; empty if it is."""
        if not self._allows_workers and config.dataloader.num_workers:
            return (NO_WORKERS,)
        violations = self._resources.predict(config).find_violations(self._plan.budgets)
        return (f"predicted to exceed a limit: {describe_violations(violations)}",) if violations else ()

    def expected(self) -> dict[LoaderConfig, float]:
        """Return the expected samples per second of each configuration that works."""
        configs = [config for config, record in self.known.items() if record.is_feasible]
        found = self.surrogate.predict(configs)
        return {config: one.samples_per_second for config, one in zip(configs, found, strict=True)}

    def make_record(self, number: int, config: LoaderConfig, result: TrialResult | None) -> TrialRecord:
        """Return the record of a trial, with the prediction before it."""
        predicted = self.surrogate.predict([config])[0].samples_per_second
        is_excluded = not self._allows_workers and config.dataloader.num_workers > 0
        works = float(is_excluded) if result is None else -1.0 if result.kind == "completed" else 1.0
        found = self._plan.estimate(result) if result is not None else None
        skipped_rate = predicted if result is None else 0.0
        measurement = result.measurement if result is not None else None
        return TrialRecord(
            number=number,
            config=config,
            status="skipped" if result is None else "measured",
            samples_per_second=skipped_rate if found is None else found.samples_per_second,
            predicted=predicted,
            relative_error=found.relative_error if found is not None and math.isfinite(found.relative_error) else None,
            constraints=self._resources.predict(config).constraints(self._plan.budgets) | {"works": works},
            result=result,
            peak_gpu_bytes=measurement.peak_gpu_bytes if measurement is not None else 0,
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
        self._distributions = make_distributions(plan.space)
        self._random = optuna.samplers.RandomSampler(seed=plan.request.seed)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the settings that are proposed together: all of them."""
        return self._distributions

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

    Raises:
        UsageError: It needs a package that is not installed.
    """
    request = plan.request
    if request.sampler == "model":
        return CostModelSampler(plan, prior, allows_workers)
    seed = (request.seed + known) % SEED_COUNT
    if request.sampler == "gp":
        try:
            import scipy  # type: ignore[import-untyped]  # noqa: F401
        except ImportError:
            raise UsageError("--sampler gp needs scipy: pip install 'dltune[gp]'.") from None
        return optuna.samplers.GPSampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
    if request.sampler == "tpe":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True)
    return optuna.samplers.RandomSampler(seed=seed)
