"""The search: ask, screen, measure, tell, until nothing more is to be expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from autotune.config import LoaderConfig
from autotune.errors import WorkloadError
from autotune.profiles.schema import TunedProfile
from autotune.progress import ProgressListener
from autotune.search.ask_tell import ProposedTrial, Search
from autotune.search.knowledge import SearchKnowledge
from autotune.search.plan import Plan
from autotune.search.stopping import MIN_EXPECTED_IMPROVEMENT, StopCriteria
from autotune.search.surrogate import Prediction, SpeedupPrediction
from autotune.search.trial_record import TrialRecord
from autotune.search.warm_start import WarmStart, plan_warm_start
from autotune.search.worker_check import WorkerCheck
from autotune.trial.interruption import capture_interruption
from autotune.trial.measurement import TrialResult
from autotune.trial.protocol import RunTrial, TrialRequest

SEARCH_PRECISION: Final = 0.05  # relative half-width at which a trial of the search ends; finalists are remeasured
SEARCH_SHARE: Final = 0.6  # of the time of a trial; the rest is kept for looking at the finalists again
HOPELESS_SHARE: Final = 0.8  # of the best; a trial whose interval lies below it ends early
LOOK_PRECISION: Final = 0.001  # of a trial that is run for its samples: it goes on for as long as a trial may
MIN_COMPARED: Final = 2  # configurations that work, for the best of them to be worth writing down
MAX_REMEASUREMENTS: Final = 3  # in a run, of measurements that the others make doubtful


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """What a search found, as far as it got."""

    records: tuple[TrialRecord, ...]
    stopped: str  # why it ended, in words
    findings: tuple[str, ...]  # sentences on what the trials showed of the workload
    expected: Mapping[LoaderConfig, float]  # samples per second, smoothed over the neighbours
    predict: Callable[[Sequence[LoaderConfig]], list[Prediction]]  # the model as corrected by the trials
    predict_speedups: Callable[[Sequence[LoaderConfig]], list[SpeedupPrediction]]  # of each over the one before
    is_legal: Callable[[LoaderConfig], bool]  # as far as the trials taught
    interrupted_by: BaseException | None = None  # None when it came to its own end


def search(
    plan: Plan,
    study: Search,
    run_trial: RunTrial,
    progress: ProgressListener,
    has_time: Callable[[int], bool] = lambda tried: True,
    earlier: TunedProfile | None = None,
) -> SearchOutcome:
    """Try configurations until nothing more is to be expected, or the search is cut short.

    `has_time` tells, from the number of trials done, whether another one may begin; `earlier` says where to look first.

    Raises:
        WorkloadError: The user's code fails where no configuration could help.
    """
    warm = None if earlier is None else plan_warm_start(earlier, plan.hardware)
    loop = SearchLoop(plan, study, run_trial, progress, has_time, warm)
    knowledge = loop.knowledge
    progress.show_resumed(study.name, len(knowledge.records))
    stopped = ""
    with capture_interruption() as cut:
        stopped = loop.run()
        progress.show_stop(stopped)
    if isinstance(cut.cause, WorkloadError):
        study.finish()  # the next run meets other code: what failed in this one is to be tried again
        if knowledge.count_feasible() < MIN_COMPARED:
            raise cut.cause
    return SearchOutcome(
        records=tuple(knowledge.records),
        stopped=stopped or cut.reason,
        findings=loop.findings,
        expected=knowledge.smoothed_throughput(),
        predict=knowledge.surrogate.predict,
        predict_speedups=knowledge.surrogate.predict_speedups,
        is_legal=knowledge.is_legal,
        interrupted_by=cut.cause,
    )


class SearchLoop:
    """The search under way; its arguments are those of `search`."""

    def __init__(
        self,
        plan: Plan,
        search: Search,
        run_trial: RunTrial,
        progress: ProgressListener,
        has_time: Callable[[int], bool] = lambda tried: True,
        warm: WarmStart | None = None,
    ) -> None:
        self._plan = plan
        self._search = search
        self._run_trial = run_trial
        self._progress = progress
        is_suspected = plan.workload.worker_failure is not None
        self._worker_check = WorkerCheck(plan.candidates, self._try_to_the_end, is_suspected=is_suspected)
        self.knowledge = SearchKnowledge(plan, self._worker_check.excludes)
        first = self._worker_check.order(plan.initial_configs() if warm is None else _start_from(warm, plan))
        knows_rates = warm is not None and bool(warm.observations)  # else it knows only where to look first
        self._stopping = StopCriteria(plan, self.knowledge, first, has_time, is_warm=knows_rates)
        self._repeats = 0
        self._remeasured: set[LoaderConfig] = set()
        self.knowledge.learn_prior(() if warm is None else warm.observations)
        for record in search.records():
            if record.status != "repeated":
                self.knowledge.learn(record)
        search.enqueue(first)
        search.guide(self.knowledge.next_candidate)

    @property
    def findings(self) -> tuple[str, ...]:
        """Sentences on what the trials showed of the workload, for the user to read."""
        return self._worker_check.findings

    def run(self) -> str:
        """Search until a reason to stop appears, and give it in words."""
        while (reason := self._find_reason_to_stop()) is None:
            self.run_proposal(self._search.ask())
        for finding in self.findings:
            if finding != self._worker_check.reason:  # which was shown when it was found
                self._progress.show_finding(finding)
        return reason

    def _find_reason_to_stop(self) -> str | None:
        reason = self._stopping.find_limit(self._repeats)
        if reason is None and (no_gain := self._stopping.find_no_gain()) is not None:
            return None if self._requeue_outlier() else no_gain
        return reason

    def _requeue_outlier(self) -> bool:
        """Have the measurement that the others make most doubtful repeated, if it could be the best.

        The first trial that fills a queue of large batches is one: memory that a virtual machine has not touched for
        a while is slow to get.
        """
        doubt = self.knowledge.surrogate.most_doubtful_observation(self._remeasured)
        if doubt is None or doubt.gain < MIN_EXPECTED_IMPROVEMENT or len(self._remeasured) >= MAX_REMEASUREMENTS:
            return False
        self._remeasured.add(doubt.config)
        self.knowledge.forget(doubt.config)  # what an earlier run says of it may be doubted, too
        self._search.enqueue([doubt.config], again=True)
        return True

    def run_proposal(self, asked: ProposedTrial) -> None:
        """Answer a proposal from the record, by the limits, or by a trial."""
        known = self.knowledge.find(asked.config)
        if known is not None:
            self._repeats += 1
            self._search.tell(known.model_copy(update={"number": asked.number, "status": "repeated", "result": None}))
            return
        self._repeats = 0
        reasons = self.knowledge.rejection_reasons(asked.config)
        result = None if reasons else self._measure(asked.config)
        record = self.knowledge.make_record(asked.number, asked.config, result)
        self._search.tell(record)  # before it is shown: what the user has seen is never lost
        self._learn(record, reasons)
        if result is not None:
            self._test_workers(result)

    def _learn(self, record: TrialRecord, reasons: tuple[str, ...] = ()) -> None:
        """Take in what was told, and show it."""
        best = self.knowledge.best
        is_best = record.is_feasible and (best is None or record.score > best.score)
        self.knowledge.learn(record)
        number = len(self.knowledge.records)
        if reasons:
            self._progress.show_skip(number, record.config, reasons)
            return
        error = self.knowledge.estimate(record.result).relative_error
        self._progress.show_result(number, record, error, is_best)

    def _measure(self, config: LoaderConfig) -> TrialResult:
        """Run a trial, and again where its failure may have been bad luck."""
        self._progress.show_start(len(self.knowledge.records) + 1, config)
        best = self.knowledge.best
        hopeless_below = HOPELESS_SHARE * best.score if best is not None else None
        result = self._run(config, hopeless_below)
        self._worker_check.note(result)
        if self._worker_check.is_flaky(result):
            first, result = result, self._run(config, hopeless_below)
            self._worker_check.note(result)
            self._worker_check.note_retry(first, result)
        if best is None:
            self._worker_check.raise_on_hopeless(result, self._plan.request.workload)
        return result

    def _try_to_the_end(self, config: LoaderConfig) -> TrialResult:
        """Run a trial that the check of workers asks for; one that the search could propose is kept like those."""
        self._progress.show_start(len(self.knowledge.records) + 1, config)
        result = self._run(config, hopeless_below=None, precision=LOOK_PRECISION)
        if config in self._plan.candidates:
            record = self.knowledge.make_record(self._search.next_number, config, result)
            self._search.add(record)
            self._learn(record)
        return result

    def _run(
        self, config: LoaderConfig, hopeless_below: float | None, precision: float = SEARCH_PRECISION
    ) -> TrialResult:
        request = self._plan.request
        return self._run_trial(
            TrialRequest(
                config=config,
                epochs=request.epochs,
                seconds=SEARCH_SHARE * request.trial_seconds,
                precision=precision,
                hopeless_below=hopeless_below,
            )
        )

    def _test_workers(self, result: TrialResult) -> None:
        """Find out what a failure says: propose no workers once they are ruled out, and end where the data fails."""
        check = self._worker_check
        if not check.test_workers(result):
            return
        if check.reason is not None:
            self.knowledge.surrogate.exclude(config for config in self._plan.candidates if check.excludes(config))
            self._progress.show_finding(check.reason)
        if check.flaw is not None and self.knowledge.count_feasible() < self._stopping.min_trials:
            raise check.explain_flaw(check.flaw)


def _start_from(warm: WarmStart, plan: Plan) -> list[LoaderConfig]:
    """List what a warm search tries first: the choices nearest to the baseline, then to the earlier best."""
    legal = set(plan.candidates)
    near, *seeds = map(plan.space.nearest, (plan.baseline, *warm.seeds))
    return list(dict.fromkeys([near, *(config for config in seeds if config in legal)]))
