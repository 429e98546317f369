"""What a search knows: the records so far, the models that learn from them, and what those make of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from autotune.config import LoaderConfig
from autotune.search.demand import describe_violations
from autotune.search.plan import Plan
from autotune.search.surrogate import Surrogate
from autotune.search.trial_record import TrialRecord, find_best
from autotune.search.warm_start import PriorObservation
from autotune.trial.measurement import TrialResult
from autotune.trial.throughput import ThroughputEstimate

PRIOR_OBSERVATION_ERROR: Final = 0.2  # relative half-width of an earlier run's rate: machine and versions drift
NO_THROUGHPUT: Final = ThroughputEstimate(samples_per_second=0.0, relative_error=0.0, wait_share=0.0, epoch_seconds=0.0)


class SearchKnowledge:
    """The records of a search, and the models of demand and throughput as corrected by them."""

    def __init__(self, plan: Plan, excludes: Callable[[LoaderConfig], bool]) -> None:
        self.surrogate = Surrogate(plan.candidates, plan.predict)
        self.records: list[TrialRecord] = []
        self._plan = plan
        self._excludes = excludes
        self._demand = plan.resource_model()
        self._by_config: dict[LoaderConfig, TrialRecord] = {}

    @property
    def best(self) -> TrialRecord | None:
        """The fastest configuration measured."""
        return find_best(self.records)

    def count_feasible(self) -> int:
        """Count the records of trials that worked."""
        return sum(record.is_feasible for record in self.records)

    def find(self, config: LoaderConfig) -> TrialRecord | None:
        """Find the record of a configuration; None where it is to be measured."""
        return self._by_config.get(config)

    def forget(self, config: LoaderConfig) -> None:
        """Have a configuration measured once more."""
        self._by_config.pop(config, None)

    def learn_prior(self, observations: Iterable[PriorObservation]) -> None:
        """Take in what an earlier run measured: it guides, and each configuration may still be proposed."""
        for seen in observations:
            self.surrogate.observe(seen.config, seen.samples_per_second, PRIOR_OBSERVATION_ERROR)
        self.surrogate.include_all()

    def learn(self, record: TrialRecord) -> None:
        """Take in what became of a proposal."""
        self.records.append(record)
        self._by_config[record.config] = record
        self.surrogate.exclude([record.config])
        if record.result is None:
            return
        self._demand = self._demand.learn(record.result)
        if record.is_feasible:
            self.surrogate.observe(record.config, record.score, self.estimate(record.result).relative_error)
        else:
            self.surrogate.observe_failure(record.config)

    def estimate(self, result: TrialResult | None) -> ThroughputEstimate:
        """Estimate what a fresh process would reach; nothing where no trial ran, or it failed."""
        return (result and self._plan.estimate(result)) or NO_THROUGHPUT

    def next_candidate(self) -> LoaderConfig | None:
        """Name the most promising configuration; what trials taught of demands may rule some out on the way."""
        while (proposal := self.surrogate.propose()) is not None:
            if not self._demand.predict(proposal.config).find_violations(self._plan.budgets):
                return proposal.config
            self.surrogate.exclude([proposal.config])
        return None

    def rejection_reasons(self, config: LoaderConfig) -> tuple[str, ...]:
        """Say why a configuration is not worth a trial; empty when it is."""
        if self._excludes(config):
            return ("workers are ruled out",)
        violations = self._demand.predict(config).find_violations(self._plan.budgets)
        return (f"predicted over a limit: {describe_violations(violations)}",) if violations else ()

    def is_legal(self, config: LoaderConfig) -> bool:
        """Tell whether nothing that the trials taught speaks against a configuration, tried or not."""
        return not self.rejection_reasons(config)

    def smoothed_throughput(self) -> dict[LoaderConfig, float]:
        """Give what each measured configuration is expected to reach, in samples per second.

        One measurement is also luck; seen beside its neighbours it is less so.
        """
        configs = [record.config for record in self.records if record.is_feasible]
        found = self.surrogate.predict(configs)
        return {config: expected.samples_per_second for config, expected in zip(configs, found, strict=True)}

    def make_record(self, number: int, config: LoaderConfig, result: TrialResult | None) -> TrialRecord:
        """Write down what became of a proposal, beside what was expected of it."""
        predicted = self.surrogate.predict([config])[0].samples_per_second
        constraints = self._demand.predict(config).constraints(self._plan.budgets)
        return TrialRecord(
            number=number,
            config=config,
            status="skipped" if result is None else "measured",
            score=predicted if result is None else self.estimate(result).samples_per_second,
            predicted=predicted,
            constraints=constraints | {"works": self._rate_outcome(config, result)},
            result=result,
        )

    def _rate_outcome(self, config: LoaderConfig, result: TrialResult | None) -> float:
        """Give Optuna's constraint: above 0 for what does not work, 0 where it was not tried."""
        if result is None:
            return 1.0 if self._excludes(config) else 0.0
        return -1.0 if result.kind == "completed" else 1.0
