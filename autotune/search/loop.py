"""The search: ask, screen, measure, tell, until nothing more is to be expected."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from autotune.config import LoaderConfig
from autotune.errors import WorkloadError
from autotune.progress import ProgressListener
from autotune.search.demand import ResourceDemand, describe_violations
from autotune.search.failure_rates import Cause, name_cause
from autotune.search.plan import Plan
from autotune.search.sampler import ProposedTrial, Search
from autotune.search.surrogate import Prediction, Surrogate
from autotune.search.trial_record import TrialRecord
from autotune.search.warm_start import WarmStart
from autotune.search.worker_check import WorkerCheck
from autotune.trial.interruption import keep_what_was_measured
from autotune.trial.measurement import TrialResult
from autotune.trial.protocol import RunTrial, TrialRequest
from autotune.trial.throughput import ThroughputEstimate

SEARCH_PRECISION: Final = 0.05  # relative half-width at which a trial of the search ends; finalists are remeasured
SEARCH_SHARE: Final = 0.7  # of the time of a trial; the rest is kept for looking at the finalists again
HOPELESS_SHARE: Final = 0.8  # of the best; a trial whose interval lies below it ends early
NEAR_CEILING_RATIO: Final = 0.98  # of the step's ceiling; nothing is left to gain above it
MIN_EXPECTED_IMPROVEMENT: Final = 0.006  # expected from the most promising configuration; below it the search ends
IMPROVEMENT_RATIO: Final = 1.02  # an improvement smaller than this is noise and does not count as one
MIN_TRIALS: Final = 8  # measured before expectations may end the search: the first few teach the model its own error
PATIENCE_TRIALS: Final = (
    10  # measured trials without improvement after which the expectations have been wrong often enough
)
WARM_PATIENCE: Final = 2  # the same for a search that starts from an earlier answer
NON_ADAPTIVE_SAMPLERS: Final = ("random", "grid")  # samplers that are chosen to look at everything; they run all trials
LOOK_PRECISION: Final = 0.001  # of a trial that is run for its samples: it goes on for as long as a trial may
NOTHING: Final = ThroughputEstimate(samples_per_second=0.0, relative_error=0.0, wait_fraction=0.0, epoch_seconds=0.0)
MIN_COMPARED: Final = 2  # configurations that work, for the best of them to be worth writing down
MAX_REPEATS: Final = 40  # proposals in a row that were all measured before
PRIOR_OBSERVATION_ERROR: Final = (
    0.2  # relative half-width that a rate of an earlier run is given: machine and versions drift
)
MAX_REMEASUREMENTS: Final = 3  # at most, in a run, at measurements that the others make doubtful


@dataclass(frozen=True)
class SearchOutcome:
    """What a search found, as far as it got.

    Attributes:
        records: Every proposal, in order.
        stopped: Why it ended, in words.
        findings: Sentences on what the trials showed of the workload.
        expected: What each measured configuration is expected to reach, in samples per second.
        predict: The model as corrected by the trials.
        is_legal: Whether nothing that the trials taught speaks against a configuration, tried or not.
        cut_by: What cut it short; None when it came to its own end.
    """

    records: tuple[TrialRecord, ...]
    stopped: str
    findings: tuple[str, ...]
    expected: Mapping[LoaderConfig, float]
    predict: Callable[[Sequence[LoaderConfig]], list[Prediction]]
    is_legal: Callable[[LoaderConfig], bool]
    cut_by: BaseException | None = None


def search(
    plan: Plan,
    study: Search,
    run_trial: RunTrial,
    progress: ProgressListener,
    has_time: Callable[[int], bool] = lambda tried: True,
    warm: WarmStart | None = None,
) -> SearchOutcome:
    """Try configurations until nothing more is to be expected.

    Args:
        plan: What there is to work with.
        study: Proposes configurations and stores what came of them.
        run_trial: Measures one configuration.
        progress: Is told what happens.
        has_time: Tells, from the number of trials done, whether another one may begin.
        warm: What an earlier result says about where to look; None to start cold.

    Returns:
        What was found; when it was cut short, until then.

    Raises:
        WorkloadError: The user's code fails where no configuration could help.
    """
    loop = SearchLoop(plan, study, run_trial, progress, has_time, warm)
    progress.show_resumed(study.name, len(loop.records))
    stopped = ""
    with keep_what_was_measured() as cut:
        stopped = loop.run()
        progress.show_stop(stopped)
    if isinstance(cut.cause, WorkloadError):
        study.finish()  # the next run meets other code: what failed in this one is to be tried again
        if sum(record.is_feasible for record in loop.records) < MIN_COMPARED:
            raise cut.cause
    return SearchOutcome(
        records=tuple(loop.records),
        stopped=stopped or cut.reason,
        findings=loop.findings,
        expected=loop.expect(),
        predict=loop.predict,
        is_legal=loop.is_legal,
        cut_by=cut.cause,
    )


class SearchLoop:
    """The search under way.

    Args:
        plan: What there is to work with.
        search: Proposes configurations and stores what came of them.
        run_trial: Measures one configuration.
        progress: Is told what happens.
        has_time: Tells, from the number of trials done, whether another one may begin.
        warm: What an earlier result says about where to look; None to start cold.
    """

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
        self._has_time = has_time
        self._demand = plan.demand_model()
        self._surrogate = Surrogate(plan.candidates, plan.predict)
        is_suspected = plan.workload.worker_failure is not None
        self._ruling = WorkerCheck(plan.candidates, self._look, is_suspected=is_suspected)
        self._first = self._ruling.order(plan.first_configs() if warm is None else self._start_warm(warm))
        self._fewest, self._patience = (
            (MIN_TRIALS, PATIENCE_TRIALS) if warm is None else (len(self._first), WARM_PATIENCE)
        )
        self.records = [record for record in search.records() if record.fate != "repeated"]
        self._known = {record.config: record for record in self.records}
        self._repeats = 0
        self._reconsidered: set[LoaderConfig] = set()
        for record in self.records:
            self._learn(record, self._estimate(record.result))
        search.enqueue(self._first)
        search.guide(self._propose)

    def _start_warm(self, warm: WarmStart) -> list[LoaderConfig]:
        """Take in what earlier trials reached; what is tried first is near the baseline, then the earlier best."""
        for hint in warm.hints:
            self._surrogate.learn(hint.config, hint.samples_per_second, PRIOR_OBSERVATION_ERROR)
        self._surrogate.reopen()
        legal = set(self._plan.candidates)
        near = self._plan.space.nearest(self._plan.baseline)
        return list(dict.fromkeys([near, *(config for config in warm.seeds if config in legal)]))

    @property
    def best(self) -> TrialRecord | None:
        """The fastest configuration measured."""
        return find_best(self.records)

    @property
    def findings(self) -> tuple[str, ...]:
        """Sentences on what the trials showed of the workload, for the user to read."""
        return self._ruling.findings

    def run(self) -> str:
        """Search until a reason to stop appears.

        Returns:
            The reason, in words.

        Raises:
            WorkloadError: The user's code fails where no configuration could help.
        """
        while (reason := self._find_reason_to_stop()) is None:
            self._take(self._search.ask())
        for finding in self.findings:
            if finding != self._ruling.reason:  # which was shown when it was found
                self._progress.show_finding(finding)
        return reason

    def expect(self) -> dict[LoaderConfig, float]:
        """Give what each measured configuration is expected to reach, in samples per second.

        One measurement is also luck; seen beside its neighbours it is less so.
        """
        configs = [record.config for record in self.records if record.is_feasible]
        found = self._surrogate.predict(configs)
        return {config: expected.samples_per_second for config, expected in zip(configs, found, strict=True)}

    def is_legal(self, config: LoaderConfig) -> bool:
        """Tell whether nothing that the trials taught speaks against a configuration, tried or not."""
        return not self._list_objections(config, self._demand.predict(config))

    def predict(self, configs: Sequence[LoaderConfig]) -> list[Prediction]:
        """Give what the model, as corrected by the trials, expects of configurations, measured or not."""
        return self._surrogate.predict(configs)

    def _find_reason_to_stop(self) -> str | None:
        request = self._plan.request
        if len(self.records) >= request.trials:
            return f"all {request.trials} trials done"
        if not self._has_time(len(self.records)):
            return "the time allowed by --timeout is used up"
        if (share := self._share_of_ceiling()) >= NEAR_CEILING_RATIO:
            return f"the best reaches {share:.0%} of what the step allows"
        if self._repeats >= MAX_REPEATS:
            return f"the last {self._repeats} proposals were all measured before"
        return self._find_nothing_new()

    def _find_nothing_new(self) -> str | None:
        """Tell whether what the trials taught leaves no configuration that is likely to be better."""
        started = self.best is not None and all(config in self._known for config in self._first)
        if not started or self._plan.request.sampler in NON_ADAPTIVE_SAMPLERS:
            return None
        reason = self._find_no_gain()
        return None if reason is not None and self._reconsider() else reason

    def _find_no_gain(self) -> str | None:
        proposal = self._surrogate.propose()
        if proposal is None:
            return "every configuration within the limits was tried"
        if sum(record.is_feasible for record in self.records) < self._fewest:
            return None
        if proposal.gain < MIN_EXPECTED_IMPROVEMENT:
            return f"no other configuration is expected to gain {MIN_EXPECTED_IMPROVEMENT:.1%} or more"
        if (tried := trials_since_improvement(self.records)) >= self._patience:
            return f"no gain above {IMPROVEMENT_RATIO - 1:.0%} in the last {tried} trials"
        return None

    def _reconsider(self) -> bool:
        """Have the measurement that the others make most doubtful repeated, if it could be the best.

        The first trial that fills a queue of large batches is one: memory that a virtual machine has not touched for
        a while is slow to get.
        """
        doubt = self._surrogate.doubt()
        if doubt is None or doubt.gain < MIN_EXPECTED_IMPROVEMENT or len(self._reconsidered) >= MAX_REMEASUREMENTS:
            return False
        if doubt.config in self._reconsidered:
            return False
        self._reconsidered.add(doubt.config)
        self._known.pop(doubt.config, None)  # what an earlier run says of it may be doubted, too
        self._search.enqueue([doubt.config], again=True)
        return True

    def _share_of_ceiling(self) -> float:
        best = self.best
        if best is None or not self._plan.knows_ceiling(best.config, best.score):
            return 0.0
        return best.score / self._plan.ceiling

    def _propose(self) -> LoaderConfig | None:
        """Name the most promising configuration, for a sampler that asks for it."""
        while (proposal := self._surrogate.propose()) is not None:
            if not self._demand.predict(proposal.config).find_violations(self._plan.budgets):
                return proposal.config
            self._surrogate.close([proposal.config])  # what trials taught of its demand rules it out
        return None

    def _take(self, asked: ProposedTrial) -> None:
        """Answer a proposal from the record, by the limits, or by a trial."""
        known = self._known.get(asked.config)
        if known is not None:
            self._repeats += 1
            self._search.tell(known.model_copy(update={"number": asked.number, "fate": "repeated", "result": None}))
            return
        self._repeats = 0
        reasons = self._list_objections(asked.config, self._demand.predict(asked.config))
        if reasons:
            record = self._record(asked, None)
            self._search.tell(record)
            self._keep(record)
            self._progress.show_skip(len(self.records), record.config, reasons)
            return
        record = self._record(asked, self._measure(asked.config))
        self._search.tell(record)  # before it is shown: what the user has seen is never lost
        self._show(record)
        self._judge(record)

    def _show(self, record: TrialRecord) -> None:
        """Take in a trial that was told, and show it."""
        best = self.best
        is_best = record.is_feasible and (best is None or record.score > best.score)
        self._keep(record)
        self._progress.show_result(len(self.records), record, self._estimate(record.result).relative_error, is_best)

    def _keep(self, record: TrialRecord) -> None:
        self.records.append(record)
        self._known[record.config] = record
        self._learn(record, self._estimate(record.result))

    def _list_objections(self, config: LoaderConfig, demand: ResourceDemand) -> tuple[str, ...]:
        """Say why a configuration is not worth a trial; empty when it is."""
        if self._ruling.applies_to(config):
            return ("workers are ruled out",)
        violations = demand.find_violations(self._plan.budgets)
        return (f"predicted over a limit: {describe_violations(violations)}",) if violations else ()

    def _estimate(self, result: TrialResult | None) -> ThroughputEstimate:
        return (result and self._plan.estimate(result)) or NOTHING

    def _record(self, asked: ProposedTrial, result: TrialResult | None) -> TrialRecord:
        predicted = self._surrogate.predict([asked.config])[0].samples_per_second
        works = _rate_outcome(result, is_ruled_out=self._ruling.applies_to(asked.config))
        demand = self._demand.predict(asked.config)
        return TrialRecord(
            number=asked.number,
            config=asked.config,
            fate="skipped" if result is None else "measured",
            score=predicted if result is None else self._estimate(result).samples_per_second,
            predicted=predicted,
            constraints=demand.constraints(self._plan.budgets) | {"works": works},
            result=result,
        )

    def _measure(self, config: LoaderConfig) -> TrialResult:
        """Run a trial, and again where its failure may have been bad luck."""
        self._progress.show_start(len(self.records) + 1, config)
        result = self._run(config, self._hopeless_below)
        self._ruling.note(result)
        if self._ruling.may_be_luck(result):
            first, result = result, self._run(config, self._hopeless_below)
            self._ruling.note(result)
            self._ruling.note_repeated(first, result)
        self._refuse_hopeless(result)
        return result

    def _look(self, config: LoaderConfig) -> TrialResult:
        """Run a trial that the ruling asks for, to its end; one that the search could propose is kept like those."""
        self._progress.show_start(len(self.records) + 1, config)
        result = self._run(config, hopeless_below=None, precision=LOOK_PRECISION)
        if config in self._plan.candidates:
            record = self._record(ProposedTrial(number=self._search.next_number, config=config), result)
            self._search.add(record)
            self._show(record)
        return result

    @property
    def _hopeless_below(self) -> float | None:
        best = self.best
        return HOPELESS_SHARE * best.score if best is not None else None

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

    def _learn(self, record: TrialRecord, found: ThroughputEstimate) -> None:
        self._surrogate.close([record.config])
        if record.result is None:
            return
        self._demand = self._demand.learn(record.result)
        if record.is_feasible:
            self._surrogate.learn(record.config, record.score, found.relative_error)
        else:
            self._surrogate.fail(record.config)

    def _judge(self, record: TrialRecord) -> None:
        """Find out what a failure says: propose no workers once they are ruled out, and end where the data fails."""
        if record.result is None or not self._ruling.judge(record.result):
            return
        if self._ruling.reason is not None:
            self._surrogate.close(config for config in self._plan.candidates if self._ruling.applies_to(config))
            self._progress.show_finding(self._ruling.reason)
        if self._ruling.flaw is not None and sum(record.is_feasible for record in self.records) < self._fewest:
            raise self._explain_flaw(self._ruling.flaw)

    def _explain_flaw(self, flaw: Cause) -> WorkloadError:
        rates = self._ruling.rates
        return WorkloadError(
            f"The dataset itself fails: {rates.describe(flaw)}. A training run would meet it as well: mend it, or "
            "have the dataset replace such samples.",
            rates.find_example(flaw).details,
        )

    def _refuse_hopeless(self, result: TrialResult) -> None:
        """End the run when what fails again needs no workers, and nothing has worked yet."""
        about_workers = result.config.dataloader.num_workers and not result.in_step
        if self.best is not None or about_workers or result.kind not in ("workload_failed", "device_failed"):
            return
        who = "Training" if result.kind == "device_failed" else "The dataset"
        if result.in_step:
            who = f"The training step ({self._plan.request.workload.describe_step()})"
        where = "" if result.config.dataloader.num_workers else " even without workers"
        seen = self._ruling.rates.count(name_cause(result))
        raise WorkloadError(f"{who} fails{where}: it {result.message.rstrip('.')}. Seen in {seen}.", result.details)


def find_best(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """Find the fastest configuration that was measured; None when none works."""
    return max((record for record in records if record.is_feasible), key=lambda record: record.score, default=None)


def trials_since_improvement(records: Sequence[TrialRecord]) -> int:
    """Count the measured trials since the last one that improved on all before it by more than noise."""
    best, since = 0.0, 0
    for record in (record for record in records if record.is_feasible):
        since = 0 if record.score > IMPROVEMENT_RATIO * best else since + 1
        best = max(best, record.score)
    return since


def measure_prediction_error(records: Sequence[TrialRecord]) -> float | None:
    """Give the median relative distance between what was predicted before a trial and what it measured."""
    distances = [
        abs(record.predicted / record.score - 1) for record in records if record.is_feasible and record.predicted > 0
    ]
    return statistics.median(distances) if distances else None


def _rate_outcome(result: TrialResult | None, *, is_ruled_out: bool) -> float:
    """Give Optuna's constraint: above 0 for what does not work, 0 where it was not tried."""
    if result is None:
        return 1.0 if is_ruled_out else 0.0
    return -1.0 if result.kind == "completed" else 1.0
