"""Search loop: asks for configurations and measures them until no further gain is expected.

The first configurations are queued in the study. Then the sampler proposes; `model` proposes the candidate with the
largest expected improvement. `SearchLoop.run` is the loop, `_must_stop` and `_expects_no_gain` end it. Whatever sampler
proposes, our own model decides whether a gain is expected; `random` goes on to the limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from optuna.trial import Trial, TrialState

from autotune.config import LoaderConfig
from autotune.errors import WorkloadError
from autotune.planning.plan import Plan
from autotune.profiles.schema import TunedProfile
from autotune.progress import ProgressListener
from autotune.protocol.interruption import capture_interruption
from autotune.protocol.measurement import TrialResult
from autotune.protocol.messages import RunTrial, TrialRequest
from autotune.search.failures import FailureCheck, raise_if_unavoidable
from autotune.search.sampler import TrialModel, make_sampler
from autotune.search.study import ask, enqueue, open_study, quiet_logs, read_records, store_record
from autotune.search.trial_record import IMPROVEMENT_RATIO, SearchOutcome, TrialRecord, trials_since_improvement
from autotune.search.warm_start import choose_seeds, read_trials

SEARCH_PRECISION: Final = 0.05  # relative half-width at which a trial of the search ends; candidates are measured again
SEARCH_SHARE: Final = 0.6  # of the seconds of a trial; the rest is for the validation
PRUNE_SHARE: Final = 0.8  # of the best throughput; a trial whose whole interval lies below it ends early
FULL_LENGTH_PRECISION: Final = 0.001  # of a trial that is run for its samples: it takes all its seconds
MIN_SAVED: Final = 2  # configurations that work, for the best of them to be worth saving
MAX_REMEASUREMENTS: Final = 3  # of outliers, in a run
UPPER_BOUND_SHARE: Final = 0.98  # of the upper bound; nothing is to be gained above it
MIN_EXPECTED_IMPROVEMENT: Final = 0.015  # share of the best; the search ends if no untried candidate has more
MIN_DESPITE_FLAW: Final = 6  # completed trials from which the search goes on although some samples fail
MIN_TRIALS: Final = 6  # completed before expectations may end the search: the first few correct the model
PATIENCE_TRIALS: Final = 4  # without improvement, after which the search ends
SAMPLER_PATIENCE_TRIALS: Final = 10  # of Optuna's samplers, which know only the trials
WARM_PATIENCE_TRIALS: Final = 2  # of a search that starts from an earlier result
MAX_REPEATS: Final = 40  # consecutive proposals that were all measured before
REMEASURED: Final = "measured again"  # user attribute of the trial that repeats an outlier


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
        earlier: A profile to start from: the trials of an interrupted run count as trials of this search, and the best
            configurations of a complete one are tried first.

    Raises:
        WorkloadError: The user's code fails in a way that no configuration avoids.
        StudyError: The study cannot be opened.
    """
    with quiet_logs():
        loop = SearchLoop(plan, run_trial, progress, has_time, earlier)
        reason = ""
        with capture_interruption() as interruption:
            reason = loop.run()
            progress.show_stop(reason)
    loop.model.fit(loop.records)
    if isinstance(interruption.cause, WorkloadError) and loop.model.feasible_count < MIN_SAVED:
        raise interruption.cause
    reason, warnings = reason or interruption.reason, loop.check.warnings
    return SearchOutcome(tuple(loop.records), reason, warnings, loop.model, interruption.cause)


class SearchLoop:
    """A search under way; its arguments are those of `search`.

    Attributes:
        records: The trials so far, without repeated ones.
        model: The models as corrected by these trials.
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
        self._plan, self._run_trial, self._progress, self._has_time = plan, run_trial, progress, has_time
        self._repeats = 0
        self._remeasured: set[LoaderConfig] = set()
        self.model = TrialModel(plan)
        self.check = FailureCheck(plan.candidates, self._run_to_the_end)
        self._study = open_study(plan)
        self.records = [one for one in read_records(self._study, plan.space) if one.status != "repeated"]
        self.model.fit(self.records)
        for record in read_trials(earlier, plan):
            if record.config not in self.model.known:
                self._store(record)
        if self.records:
            progress.show_resumed(len(self.records))
        for index in range(len(self.records)):
            self._show(index)
        seeds = choose_seeds(earlier, plan)
        baseline, *others = [plan.space.nearest(plan.baseline), *seeds] if seeds else plan.initial_configs()
        others.sort(key=lambda config: config.dataloader.num_workers > 0)  # a process that has read starts no workers
        self._first = self.check.order([baseline, *others], is_suspected=plan.workload.worker_failure is not None)
        patience = PATIENCE_TRIALS if plan.request.sampler == "model" else SAMPLER_PATIENCE_TRIALS
        self._min_trials, self._patience = MIN_TRIALS, patience
        if seeds:
            self._min_trials, self._patience = len(self._first), WARM_PATIENCE_TRIALS
        self._study.sampler = make_sampler(plan, self.model, len(self.records))
        for config in self._first:
            if config not in self.model.known:
                enqueue(self._study, plan, config)

    def run(self) -> str:
        """Search until there is a reason to stop, and return it."""
        while (reason := self._must_stop()) is None:
            reason = self._expects_no_gain()
            if reason is not None and not self._queue_outlier():
                break
            self._run_next()
        for warning in self.check.warnings:
            if warning != self.check.reason:  # which was shown when it was found
                self._progress.show_warning(warning)
        return reason

    def _must_stop(self) -> str | None:
        """Return why the search ends even if first configurations are still queued; None if it may go on."""
        done, best, plan = len(self.records), self.model.best, self._plan
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

    def _expects_no_gain(self) -> str | None:
        """Return why no configuration is likely to be better than the best; None if one may be."""
        model = self.model
        is_random = self._plan.request.sampler == "random"
        if is_random or model.best is None or any(config not in model.known for config in self._first):
            return None
        proposal, since = model.propose(), trials_since_improvement(self.records)
        if proposal is None:
            return "every configuration within the limits was tried"
        if model.feasible_count < self._min_trials:
            return None
        if proposal.gain < MIN_EXPECTED_IMPROVEMENT:
            return f"no other configuration is expected to gain {MIN_EXPECTED_IMPROVEMENT:.1%} or more"
        return (
            f"less than {IMPROVEMENT_RATIO - 1:.0%} gain in the last {since} trials"
            if since >= self._patience
            else None
        )

    def _queue_outlier(self) -> bool:
        """Queue the slow outlier that could be the best, to be measured again; return whether there is one.

        The first trial that fills a queue of large batches is one: a virtual machine is slow to provide memory that it
        has not used for a while.
        """
        outlier = self.model.surrogate.find_outlier(self._remeasured)
        if outlier is None or outlier.gain < MIN_EXPECTED_IMPROVEMENT or len(self._remeasured) >= MAX_REMEASUREMENTS:
            return False
        self._remeasured.add(outlier.config)
        enqueue(self._study, self._plan, outlier.config, {REMEASURED: True})
        return True

    def _run_next(self) -> None:
        """Ask for the next configuration, and answer from the records, by the limits, or by a trial."""
        trial = ask(self._study, self._plan)
        config = self._plan.space.from_params(trial.params)
        known = self.model.known.get(config)
        if known is not None and REMEASURED not in trial.user_attrs:
            self._repeats += 1
            self._store(known.model_copy(update={"status": "repeated", "result": None}), trial)
            return
        self._repeats = 0
        try:
            result = self._measure(config) if self.model.is_allowed(config) else None
        except BaseException:
            with suppress(Exception):  # an error of the storage would hide the reason
                self._study.tell(trial, state=TrialState.FAIL)
            raise
        self._store(self.model.make_record(config, result), trial)
        self._show(len(self.records) - 1)
        if result is not None and self.check.find_cause(result):
            if self.check.reason is not None:
                self.model.allows_workers = False
                self._progress.show_warning(self.check.reason)
            if self.check.flaw is not None and self.model.feasible_count < MIN_DESPITE_FLAW:
                raise self.check.make_error(self.check.flaw)

    def _measure(self, config: LoaderConfig) -> TrialResult:
        """Run a trial, and again if its failure may be bad luck."""
        best = self.model.best
        prune_below = PRUNE_SHARE * best.samples_per_second if best is not None else None
        result = self.check.run(config, lambda config: self._run(config, SEARCH_PRECISION, prune_below))
        if best is None:
            raise_if_unavoidable(result, self._plan.request.workload)
        return result

    def _run_to_the_end(self, config: LoaderConfig) -> TrialResult:
        """Run a trial for the check of failures; a candidate is stored like other trials."""
        result = self._run(config, FULL_LENGTH_PRECISION)
        if config in self._plan.table.index:
            self._store(self.model.make_record(config, result))
            self._show(len(self.records) - 1)
        return result

    def _run(self, config: LoaderConfig, precision: float, prune_below: float | None = None) -> TrialResult:
        self._progress.show_trial_start(len(self.records) + 1, config)
        epochs, seconds = self._plan.request.epochs, SEARCH_SHARE * self._plan.request.trial_seconds
        trial = TrialRequest(config=config, epochs=epochs, seconds=seconds, precision=precision)
        return self._run_trial(trial.model_copy(update={"prune_below": prune_below}))

    def _store(self, record: TrialRecord, trial: Trial | None = None) -> None:
        """Learn from a record, and store it in the study; None adds a trial that was not proposed."""
        if record.status != "repeated":
            self.records.append(record)
            self.model.fit(self.records)
        store_record(self._study, self._plan, record, trial)

    def _show(self, index: int) -> None:
        record = self.records[index]
        error = math.inf if record.is_feasible and record.relative_error is None else record.relative_error or 0.0
        self._progress.show_trial(index + 1, record, error, self.model.best is record)
