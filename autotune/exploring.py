"""The search: ask, screen, measure, tell, until nothing more is to be expected."""

from __future__ import annotations

import time
from typing import Final

from autotune.errors import WorkloadError
from autotune.limits import Demand
from autotune.messages import RunTrial, TrialRequest, TrialResult
from autotune.planning import Plan
from autotune.records import TrialRecord
from autotune.schema import LoaderConfig
from autotune.scoring import Estimate, estimate
from autotune.search import Asked, Search
from autotune.view import View

SEARCH_PRECISION: Final = 0.05  # relative half-width at which a trial of the search ends; finalists are remeasured
SEARCH_SHARE: Final = 0.7  # of the time of a trial; the rest is kept for looking at the finalists again
HOPELESS_SHARE: Final = 0.8  # of the best; a trial whose interval lies below it ends early
CEILING_SHARE: Final = 0.98  # of the step's ceiling; nothing is left to gain above it
GAIN: Final = 1.03  # an improvement smaller than this is noise and does not count as one
FEWEST_TRIALS: Final = 14  # measured before the search may end for want of improvement
PATIENCE: Final = 8  # measured trials without improvement after which it does
MOST_REPEATS: Final = 40  # proposals in a row that were all measured before


class Exploration:
    """The search under way.

    Args:
        plan: What there is to work with.
        search: Proposes configurations and stores what came of them.
        run_trial: Measures one configuration.
        view: Is told what happens.
        deadline: Moment of `time.monotonic` at which to stop; None for no such moment.
    """

    def __init__(
        self, plan: Plan, search: Search, run_trial: RunTrial, view: View, deadline: float | None = None
    ) -> None:
        self._plan = plan
        self._search = search
        self._run_trial = run_trial
        self._view = view
        self._deadline = deadline
        self._demand = plan.demand_model()
        self.records = [record for record in search.records() if record.fate != "repeated"]
        self._known = {record.config: record for record in self.records}
        self._best = max((record.score for record in self.records if record.is_feasible), default=0.0)
        self._since_gain = 0
        self._repeats = 0
        for record in self.records:
            self._learn(record)

    def run(self) -> str:
        """Search until a reason to stop appears.

        Returns:
            The reason, in words.

        Raises:
            WorkloadError: The user's code fails even without workers.
        """
        while (reason := self._find_reason_to_stop()) is None:
            self._take(self._search.ask())
        return reason

    def _find_reason_to_stop(self) -> str | None:
        request = self._plan.request
        measured = sum(record.is_feasible for record in self.records)
        if len(self.records) >= request.trials:
            return f"all {request.trials} trials done"
        if self._deadline is not None and time.monotonic() > self._deadline:
            return "the time allowed by --timeout is used up"
        if self._has_reached_ceiling():
            return f"the best reaches {self._best / self._plan.ceiling:.0%} of what the step allows"
        if measured >= FEWEST_TRIALS and self._since_gain >= PATIENCE:
            return f"no gain above {GAIN - 1:.0%} in the last {self._since_gain} trials"
        if self._repeats >= MOST_REPEATS:
            return f"the last {self._repeats} proposals were all measured before"
        return None

    def _has_reached_ceiling(self) -> bool:
        best = max(
            (record for record in self.records if record.is_feasible), key=lambda record: record.score, default=None
        )
        if best is None or best.score < CEILING_SHARE * self._plan.ceiling:
            return False
        return self._plan.knows_ceiling(best.config, best.score)

    def _take(self, asked: Asked) -> None:
        """Answer a proposal from the record, by the limits, or by a trial."""
        demand = self._demand.predict(asked.config)
        known = self._known.get(asked.config)
        if known is not None:
            self._repeats += 1
            self._search.tell(known.model_copy(update={"number": asked.number, "fate": "repeated", "result": None}))
            return
        self._repeats = 0
        record = self._skip(asked, demand) or self._measure(asked, demand)
        self._search.tell(record)  # before it is shown: what the user has seen is never lost
        self.records.append(record)
        self._known[record.config] = record
        self._show(record, demand)
        self._learn(record)

    def _show(self, record: TrialRecord, demand: Demand) -> None:
        number = len(self.records)
        if record.result is None:
            self._view.show_skip(number, record.config, demand.find_violations(self._plan.limits))
            return
        error = self._score(record.result).relative_error
        self._view.show_result(number, record.result, record.score, error, record.score > self._best)

    def _score(self, result: TrialResult) -> Estimate:
        if result.measurement is None:
            return Estimate(samples_per_second=0.0, relative_error=0.0, wait_fraction=0.0, epoch_seconds=0.0)
        cold_seconds = self._plan.cold_seconds(result.config)
        return estimate(result.measurement, result.config, self._plan.request.epochs, cold_seconds)

    def _skip(self, asked: Asked, demand: Demand) -> TrialRecord | None:
        if not demand.find_violations(self._plan.limits):
            return None
        return TrialRecord(
            number=asked.number,
            config=asked.config,
            fate="skipped",
            score=self._plan.predict(asked.config),
            constraints=demand.constraints(self._plan.limits) | {"works": 0.0},
        )

    def _measure(self, asked: Asked, demand: Demand) -> TrialRecord:
        self._view.show_start(len(self.records) + 1, asked.config)
        result = self._run_trial(self._make_request(asked.config))
        _refuse_hopeless_workload(result)
        return TrialRecord(
            number=asked.number,
            config=asked.config,
            fate="measured",
            score=self._score(result).samples_per_second,
            constraints=demand.constraints(self._plan.limits) | {"works": -1.0 if result.kind == "completed" else 1.0},
            result=result,
        )

    def _make_request(self, config: LoaderConfig) -> TrialRequest:
        return TrialRequest(
            config=config,
            epochs=self._plan.request.epochs,
            seconds=SEARCH_SHARE * self._plan.request.trial_seconds,
            precision=SEARCH_PRECISION,
            hopeless_below=HOPELESS_SHARE * self._best if self._best else None,
        )

    def _learn(self, record: TrialRecord) -> None:
        if record.result is not None:
            self._demand = self._demand.learn(record.result)
        if not record.is_feasible:
            return
        self._since_gain = 0 if record.score > GAIN * self._best else self._since_gain + 1
        self._best = max(self._best, record.score)


def _refuse_hopeless_workload(result: TrialResult) -> None:
    if result.kind == "workload_failed" and result.config.dataloader.num_workers == 0:
        raise WorkloadError(f"The dataset fails even without workers: it {result.message}", result.details)
