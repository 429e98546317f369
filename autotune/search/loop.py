"""Search loop: propose, screen and measure configurations until no further gain is expected."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import optuna
from optuna.trial import TrialState

from autotune.config import LoaderConfig
from autotune.errors import WorkloadError
from autotune.profiles.schema import TunedProfile
from autotune.progress import ProgressListener
from autotune.search.failures import WorkerCheck
from autotune.search.plan import Plan
from autotune.search.sampler import TrialModel, make_sampler
from autotune.search.study import (
    check_study,
    describe_error,
    hide_password,
    make_distributions,
    make_trial,
    open_study,
    quiet_logs,
    read_records,
    user_attributes,
)
from autotune.search.surrogate import Prediction, SpeedupPrediction
from autotune.search.trial_record import IMPROVEMENT_RATIO, TrialRecord, trials_since_improvement
from autotune.search.warm_start import is_continued, plan_warm_start, take_over
from autotune.trial.interruption import capture_interruption
from autotune.trial.measurement import TrialResult
from autotune.trial.protocol import RunTrial, TrialRequest

SEARCH_PRECISION: Final = 0.05  # relative half-width at which a trial of the search ends; candidates are measured again
SEARCH_SHARE: Final = 0.6  # of the seconds of a trial; the rest is for the validation
PRUNE_SHARE: Final = 0.8  # of the best; a trial whose interval lies below it ends early
FULL_LENGTH_PRECISION: Final = 0.001  # of a trial that is run for its samples: it takes all its seconds
MIN_SAVED: Final = 2  # configurations that work, for the best of them to be worth saving
MAX_REMEASUREMENTS: Final = 3  # of outliers, in a run
UPPER_BOUND_SHARE: Final = 0.98  # of the upper bound; nothing is to be gained above it
MIN_EXPECTED_IMPROVEMENT: Final = 0.015  # of the most promising configuration; below it the search ends
MIN_TRIALS: Final = 6  # measured before expectations may end the search: the first few correct the model
PATIENCE_TRIALS: Final = 4  # without improvement, after which the search ends
SAMPLER_PATIENCE_TRIALS: Final = 10  # of Optuna's samplers, which know only the trials
WARM_PATIENCE_TRIALS: Final = 2  # of a search that starts from an earlier result
MAX_REPEATS: Final = 40  # consecutive proposals that were all measured before
REMEASURED: Final = "measured again"  # user attribute of the trial that repeats an outlier


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The result of a search, or of the part before it was interrupted.

    Attributes:
        records: Every trial that was measured or skipped, in order.
        stop_reason: Why the search ended.
        warnings: Failures of the workload that the trials found.
        expected: Expected samples per second of the measured configurations, smoothed over their neighbours.
        predict: Predicts throughputs by the model as corrected by the trials.
        predict_speedups: Predicts the speedup of each configuration over the one before it.
        is_legal: Whether a configuration is expected to work within the limits.
        interrupted_by: The error that ended the search early; None if it came to its end.
    """

    records: tuple[TrialRecord, ...]
    stop_reason: str
    warnings: tuple[str, ...]
    expected: Mapping[LoaderConfig, float]
    predict: Callable[[Sequence[LoaderConfig]], list[Prediction]]
    predict_speedups: Callable[[Sequence[LoaderConfig]], list[SpeedupPrediction]]
    is_legal: Callable[[LoaderConfig], bool]
    interrupted_by: BaseException | None = None


def search(
    plan: Plan,
    run_trial: RunTrial,
    progress: ProgressListener,
    has_time: Callable[[int], bool] = lambda tried: True,
    earlier: TunedProfile | None = None,
) -> SearchOutcome:
    """Try configurations until no further gain is expected, or the search is interrupted.

    Args:
        plan: The plan of the run.
        run_trial: Measures a configuration.
        progress: Receives the events of the search.
        has_time: Returns, from the number of trials, whether another one may begin.
        earlier: A profile to start from. If the same request was interrupted, its trials count as trials of this
            search; otherwise they are only observations.

    Raises:
        WorkloadError: The user's code fails in a way that no configuration avoids.
        StudyError: The storage cannot be used.
        UsageError: The sampler needs a package that is not installed.
    """
    check_study(plan.request)
    with quiet_logs():
        loop = SearchLoop(plan, run_trial, progress, has_time, earlier)
        reason = ""
        with capture_interruption() as interruption:
            reason = loop.run()
            progress.show_stop(reason)
        if isinstance(interruption.cause, WorkloadError) and loop.model.feasible_count < MIN_SAVED:
            raise interruption.cause
    model = loop.model
    return SearchOutcome(
        records=tuple(model.records),
        stop_reason=reason or interruption.reason,
        warnings=loop.check.warnings,
        expected=model.expected(),
        predict=model.surrogate.predict,
        predict_speedups=model.surrogate.predict_speedups,
        is_legal=model.is_legal,
        interrupted_by=interruption.cause,
    )


class SearchLoop:
    """A search under way; its arguments are those of `search`.

    Attributes:
        model: The models as corrected by the trials so far.
        check: Finds out whether workers or the data fail.
    """

    def __init__(
        self,
        plan: Plan,
        run_trial: RunTrial,
        progress: ProgressListener,
        has_time: Callable[[int], bool],
        earlier: TunedProfile | None,
    ) -> None:
        self._plan = plan
        self._run_trial = run_trial
        self._progress = progress
        self._has_time = has_time
        self._repeats = 0
        self._remeasured: set[LoaderConfig] = set()
        is_suspected = plan.workload.worker_failure is not None
        self.check = WorkerCheck(plan.candidates, self._run_to_the_end, is_suspected=is_suspected)
        is_same = earlier is not None and is_continued(earlier, plan)
        seeds, self._prior = ([], {}) if earlier is None or is_same else plan_warm_start(earlier, plan)
        first = [plan.space.nearest(plan.baseline), *seeds] if seeds else plan.initial_configs()
        self._first = list(dict.fromkeys(self.check.order(first)))
        self._min_trials = len(self._first) if self._prior else MIN_TRIALS
        self._study, self._is_stored = open_study(plan), plan.request.storage is not None
        self._learn(read_records(self._study, plan.space))
        for record in take_over(earlier, plan, self.model.known) if earlier is not None and is_same else ():
            self._store(record)
        if known := len(self.model.records):
            progress.show_resumed(known)
        for number, record in enumerate(self.model.records, start=1):
            progress.show_trial(number, record, record.relative_error or 0.0, record is self.model.best)
        self._study.sampler = make_sampler(plan, known, self._prior, lambda: self.check.reason is None)
        self._enqueue_first()

    def _learn(self, records: Sequence[TrialRecord]) -> None:
        self.model = TrialModel(self._plan, records, self._prior, allows_workers=self.check.reason is None)

    def _enqueue_first(self) -> None:
        for config in self._first:
            if config not in self.model.known:
                self._study.enqueue_trial(self._plan.space.to_params(config))

    def run(self) -> str:
        """Search until there is a reason to stop, and return it."""
        while (reason := self._find_limit() or self._find_no_gain()) is None:
            self._run_proposal()
        for warning in self.check.warnings:
            if warning != self.check.reason:  # which was shown when it was found
                self._progress.show_warning(warning)
        return reason

    def _find_limit(self) -> str | None:
        """Return why the search may not, or need not, go on; None if it may."""
        done, best, plan = len(self.model.records), self.model.best, self._plan
        if done >= plan.request.trials:
            return f"all {plan.request.trials} trials done"
        if not self._has_time(done):
            return "the time limit is reached"
        if best is not None and plan.has_reliable_upper_bound(best.config, best.samples_per_second):
            share = best.samples_per_second / plan.best_upper_bound
            if share >= UPPER_BOUND_SHARE:
                return f"the best reaches {share:.0%} of the upper bound"
        if self._repeats >= MAX_REPEATS:
            return f"the last {self._repeats} proposals were all measured before"
        return None

    def _find_no_gain(self) -> str | None:
        """Return why no configuration is likely to be better than the best; None if one may be.

        Before the search ends, the outlier that could be the best is measured again. The first trial that fills a queue
        of large batches is one: a virtual machine is slow to provide memory that it has not used for a while.
        """
        model, sampler = self.model, self._plan.request.sampler
        if sampler == "random" or model.best is None or any(config not in model.known for config in self._first):
            return None
        patience = PATIENCE_TRIALS if sampler == "model" else SAMPLER_PATIENCE_TRIALS
        proposal, since = model.propose(), trials_since_improvement(model.records)
        if proposal is None:
            reason = "every configuration within the limits was tried"
        elif model.feasible_count < self._min_trials:
            return None
        elif proposal.gain < MIN_EXPECTED_IMPROVEMENT:
            reason = f"no other configuration is expected to gain {MIN_EXPECTED_IMPROVEMENT:.1%} or more"
        elif since >= (WARM_PATIENCE_TRIALS if self._prior else patience):
            reason = f"less than {IMPROVEMENT_RATIO - 1:.0%} gain in the last {since} trials"
        else:
            return None
        outlier = model.surrogate.find_outlier(self._remeasured)
        if outlier is None or outlier.gain < MIN_EXPECTED_IMPROVEMENT or len(self._remeasured) >= MAX_REMEASUREMENTS:
            return reason
        self._remeasured.add(outlier.config)
        self._study.enqueue_trial(self._plan.space.to_params(outlier.config), user_attrs={REMEASURED: True})
        return None

    def _run_proposal(self) -> None:
        """Ask for a configuration, and answer from the records, by the limits, or by a trial."""
        trial = self._ask()
        config = self._plan.space.from_params(trial.params)
        known = self.model.known.get(config)
        if known is not None and REMEASURED not in trial.user_attrs:
            self._repeats += 1
            self._store(known.model_copy(update={"status": "repeated", "result": None}), trial)
            return
        self._repeats = 0
        try:
            result = self._measure(config) if self.model.is_legal(config) else None
        except BaseException:
            with suppress(Exception):  # an error of the storage would hide the reason
                self._study.tell(trial, state=TrialState.FAIL)
            raise
        self._store(self.model.make_record(trial.number, config, result), trial)
        self._show_last()
        if result is None or not self.check.test_workers(result):
            return
        if self.check.reason is not None:
            self._learn(self.model.records)
            self._progress.show_warning(self.check.reason)
        if self.check.flaw is not None and self.model.feasible_count < self._min_trials:
            raise self.check.make_error(self.check.flaw)

    def _measure(self, config: LoaderConfig) -> TrialResult:
        """Run a trial, and again if its failure may be bad luck."""
        best = self.model.best
        prune_below = PRUNE_SHARE * best.samples_per_second if best is not None else None
        result = self._run(config, SEARCH_PRECISION, prune_below)
        self.check.note(result)
        if self.check.is_flaky(result):
            first, result = result, self._run(config, SEARCH_PRECISION, prune_below)
            self.check.note(result)
            self.check.note_retry(first, result)
        if best is None:
            self.check.raise_if_unavoidable(result, self._plan.request.workload)
        return result

    def _run_to_the_end(self, config: LoaderConfig) -> TrialResult:
        """Run a trial for the check of workers; a candidate is stored like other trials."""
        result = self._run(config, FULL_LENGTH_PRECISION)
        if config in self._plan.table.index:
            self._store(self.model.make_record(len(self._study.get_trials(deepcopy=False)), config, result))
            self._show_last()
        return result

    def _run(self, config: LoaderConfig, precision: float, prune_below: float | None = None) -> TrialResult:
        self._progress.show_trial_start(len(self.model.records) + 1, config)
        request = self._plan.request
        seconds = SEARCH_SHARE * request.trial_seconds
        trial = TrialRequest(config=config, epochs=request.epochs, seconds=seconds, precision=precision)
        return self._run_trial(trial.model_copy(update={"prune_below": prune_below}))

    def _ask(self) -> optuna.Trial:
        distributions = make_distributions(self._plan.space)
        try:
            return self._study.ask(distributions)
        except Exception as error:  # whatever the database raises
            self._continue_in_memory(error)
            return self._study.ask(distributions)

    def _store(self, record: TrialRecord, trial: optuna.Trial | None = None) -> None:
        """Store a record as a trial of the study, and learn from it; None adds a trial that was not proposed."""
        try:
            if trial is None:
                self._study.add_trial(make_trial(record, self._plan.space))
            else:
                for name, excess in record.constraints.items():
                    trial.set_constraint(name, excess)
                for name, value in user_attributes(record).items():
                    trial.set_user_attr(name, value)
                self._study.tell(trial, record.samples_per_second)
        except Exception as error:  # whatever the database raises
            self._continue_in_memory(error)
            self._study.add_trial(make_trial(record, self._plan.space))
        if record.status != "repeated":
            self._learn([*self.model.records, record])

    def _show_last(self) -> None:
        """Show the last trial, after it is stored: a trial that the user has seen is never lost."""
        record = self.model.records[-1]
        error = math.inf if record.is_feasible and record.relative_error is None else record.relative_error or 0.0
        self._progress.show_trial(len(self.model.records), record, error, self.model.best is record)

    def _continue_in_memory(self, error: Exception) -> None:
        """Replace a study whose storage fails by one in memory: the run must not lose its result."""
        if not self._is_stored:
            raise error
        self._is_stored = False
        self._progress.show_warning(
            f"Trials can no longer be stored in {hide_password(str(self._plan.request.storage))}: "
            f"{describe_error(error)}. The run continues in memory and writes its result."
        )
        self._study = optuna.create_study(direction="maximize", sampler=self._study.sampler)
        self._study.add_trials([make_trial(record, self._plan.space) for record in self.model.records])
        self._enqueue_first()
