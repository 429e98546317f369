"""Search loop: asks for configurations and measures them until no further gain is expected.

With any sampler but `random`, the cost model decides whether a gain is expected. All end at the upper bound.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from optuna.trial import Trial, TrialState

from autotune.config import LoaderConfig
from autotune.errors import INTERRUPTIONS, WorkloadError
from autotune.profiles.schema import TrialSummary, TunedProfile
from autotune.progress import ProgressListener
from autotune.protocol.measurement import TrialResult
from autotune.protocol.messages import RunTrial, TrialRequest
from autotune.request import SEED_COUNT
from autotune.search import study
from autotune.search.failures import FailureCheck, raise_if_unavoidable
from autotune.search.plan import Plan
from autotune.search.study import TrialRecord
from autotune.search.surrogate import TrialModel
from autotune.units import format_count

SEARCH_PRECISION: Final = 0.05  # relative half-width at which a trial of the search ends; candidates are measured again
SEARCH_SHARE: Final = 0.6  # of the seconds of a trial; the rest is for the validation
PRUNE_SHARE: Final = 0.8  # of the best throughput; a trial whose whole interval lies below it ends early
FULL_LENGTH_PRECISION: Final = 0.001  # of a trial that is run for its samples: it takes all its seconds
MIN_SAVED: Final = 2  # configurations that work, for the best of them to be worth saving
MAX_OUTLIERS: Final = 3  # measured again, in a run
UPPER_BOUND_SHARE: Final = 0.98  # of the upper bound; nothing is to be gained above it
MIN_EXPECTED_GAIN: Final = 0.015  # share of the best; the search ends if no untried candidate has more
MIN_DESPITE_FLAW: Final = 6  # completed trials from which the search goes on although some samples fail
MIN_TRIALS: Final = 6  # completed before expectations may end the search: more than the seeds of an earlier run
PATIENCE_TRIALS: Final = 4  # without improvement, after which the search ends
SAMPLER_PATIENCE_TRIALS: Final = 10  # of Optuna's samplers, which know only the trials
WARM_PATIENCE_TRIALS: Final = 2  # of a search that starts from an earlier result
IMPROVEMENT_RATIO: Final = 1.02  # a smaller improvement is noise
MAX_REPEATS: Final = 40  # consecutive proposals that were all measured before
MAX_SEEDS: Final = 3  # configurations of an earlier run that are tried first


class SearchOutcome(NamedTuple):
    """The result of a search, or of the part before an error interrupted it; `records` are all trials in order."""

    records: tuple[TrialRecord, ...]
    stop_reason: str
    warnings: tuple[str, ...]
    model: TrialModel
    interrupted_by: BaseException | None = None


class Search:
    """Tries configurations until no further gain is expected, or the search is interrupted.

    `has_time` returns, from the number of trials, whether another one may begin. The best configurations of `earlier`,
    a validated profile, come first. Trials of `unfinished`, the profile of an interrupted run, count as this search's.
    """

    def __init__(
        self,
        plan: Plan,
        run_trial: RunTrial,
        progress: ProgressListener,
        has_time: Callable[[int], bool] = lambda tried: True,
        earlier: TunedProfile | None = None,
        unfinished: TunedProfile | None = None,
    ) -> None:
        self._plan, self._run_trial, self._progress, self._has_time = plan, run_trial, progress, has_time
        self._earlier, self._unfinished = earlier, unfinished
        self._records, self._model = list[TrialRecord](), TrialModel(plan)
        are_fixed = "num_workers" in plan.workload.fixed_settings
        self._check = FailureCheck(plan.candidates, self._run_to_the_end, are_workers_fixed=are_fixed)
        self._remeasured: set[LoaderConfig] = set()
        self._since_improvement = self._repeats = 0

    def run(self) -> SearchOutcome:
        """Search; raise WorkloadError if the user's code fails with every configuration, StudyError without a study."""
        reason, interrupted_by = "", None
        with study.quiet_logs():
            self._study = study.open_study(self._plan)
            self._load()
            try:
                self._choose_first()  # a loop must not come first: Python 3.11 and 3.12 interrupt it outside the `try`
                while not (reason := self._must_stop()):
                    if not (reason := self._expects_no_gain()):
                        self._run_next()
                        continue
                    # A virtual machine is slow to provide memory for the first large queue: measure outliers again.
                    outlier = self._model.surrogate.find_outlier(self._remeasured)
                    if outlier is None or outlier.gain < MIN_EXPECTED_GAIN or len(self._remeasured) >= MAX_OUTLIERS:
                        break
                    self._remeasured.add(outlier.config)
                    self._try(outlier.config)
                for warning in self._check.warnings:
                    if warning != self._check.reason:  # which was shown when it was found
                        self._progress.show_warning(warning)
                self._progress.show_stop(reason)
            except tuple(INTERRUPTIONS) as error:
                if isinstance(error, WorkloadError) and self._model.feasible_count < MIN_SAVED:
                    raise
                reason, interrupted_by = INTERRUPTIONS[type(error)], error
        return SearchOutcome(tuple(self._records), reason, self._check.warnings, self._model, interrupted_by)

    def _load(self) -> None:
        """Learn from the trials of the study, and from those of an interrupted run here, which are added to it."""
        stored, added = study.read_records(self._study, self._plan.space), list[TrialSummary]()
        if (unfinished := self._unfinished) is not None and unfinished.hardware == self._plan.hardware:
            known = {record.config for record in stored}
            works = [one for one in unfinished.search.trials if one.samples_per_second and one.status != "failed"]
            added = [one for one in works if self._plan.space.nearest(one.config) == one.config not in known]
        if stored or added:
            self._progress.show_resumed(len(stored) + len(added))
        for record in stored:
            self._add(record, is_stored=True)
        for one in added:
            peaks = {"peak_host_bytes": one.peak_host_bytes, "peak_shm_bytes": one.peak_shm_bytes}
            record = self._model.make_record(one.config, TrialResult(status="completed", config=one.config, **peaks))
            found = {"samples_per_second": one.samples_per_second, "predicted": one.predicted_samples_per_second}
            found |= {"relative_error": one.relative_error, "is_stopped_early": one.status == "stopped_early"}
            self._add(record.model_copy(update=found))

    def _choose_first(self) -> None:
        """Choose the first trials: the baseline, then those without workers; they share a child process."""
        plan, fewest, seeds = self._plan, self._check.fewest, choose_seeds(self._earlier, self._plan)
        baseline, *others = [plan.space.nearest(plan.baseline), *seeds] if seeds else plan.initial_configs()
        if self._earlier is not None and self._earlier.is_from_training:
            hint = plan.space.nearest(plan.default_variant(self._earlier.config))
            others = [hint, *others] if not plan.describe_excess(hint) else others
        if plan.workload.worker_failure is not None and fewest is not None:  # workers are suspected
            others = [fewest, baseline, *others]
            baseline = min(others, key=lambda one: one.dataloader.num_workers)
        others.sort(key=lambda config: config.dataloader.num_workers > 0)
        self._first = list(dict.fromkeys([baseline, *others]))
        patience = PATIENCE_TRIALS if plan.request.sampler == "model" else SAMPLER_PATIENCE_TRIALS
        self._patience = WARM_PATIENCE_TRIALS if seeds else patience
        seed = (plan.request.seed + len(self._records)) % SEED_COUNT  # a continued run draws other configurations
        self._study.sampler = study.make_sampler(plan.request.sampler, seed)

    def _must_stop(self) -> str:
        """Return why the search ends even if first configurations are still queued; empty if it may go on."""
        done, best, plan = len(self._records), self._model.best, self._plan
        if done >= plan.request.trials:
            return f"the limit of {format_count(plan.request.trials, 'trial')} is reached"
        if not self._has_time(done):
            return "the time limit is reached"
        share = 0.0 if best is None else best.samples_per_second / plan.best_upper_bound
        if share >= UPPER_BOUND_SHARE and best and plan.has_reliable_upper_bound(best.config, best.samples_per_second):
            return f"the best reaches {share:.0%} of the upper bound"
        return f"the last {MAX_REPEATS} proposals were all measured before" if self._repeats >= MAX_REPEATS else ""

    def _expects_no_gain(self) -> str:
        """Return why no configuration is likely to be better than the best; empty if one may be."""
        model, since, is_random = self._model, self._since_improvement, self._plan.request.sampler == "random"
        if is_random or model.best is None or any(config not in model.known for config in self._first):
            return ""
        if (proposal := model.propose()) is None:
            return "every configuration within the limits was tried"
        if model.feasible_count < MIN_TRIALS:
            return ""
        if proposal.gain < MIN_EXPECTED_GAIN:
            return f"no other configuration is expected to gain {MIN_EXPECTED_GAIN:.1%} or more"
        return (
            f"less than {IMPROVEMENT_RATIO - 1:.0%} gain in the last {since} trials" if since >= self._patience else ""
        )

    def _run_next(self) -> None:
        """Measure the next configuration: a first one, the model's proposal, or what the sampler draws if it is new."""
        plan, chosen = self._plan, next((one for one in self._first if one not in self._model.known), None)
        if chosen is None and plan.request.sampler == "model" and (proposal := self._model.propose()) is not None:
            chosen = proposal.config
        with study.explain_errors(plan.request):
            if chosen is not None:
                self._study.enqueue_trial(plan.space.to_params(chosen))
            trial = self._study.ask(study.make_distributions(plan.space))
        config = plan.space.from_params(trial.params)
        if (known := self._model.known.get(config)) is None:
            self._repeats = 0
            self._try(config, trial)
        else:
            self._repeats += 1
            study.store_record(self._study, plan, known, trial)

    def _try(self, config: LoaderConfig, trial: Trial | None = None) -> None:
        """Measure a configuration, unless it is predicted to exceed a limit; None is a trial that was not proposed."""
        result, is_first = None, self._model.best is None
        try:
            if self._model.is_allowed(config):
                result = self._check.run(config, self._run)
                if is_first:
                    raise_if_unavoidable(result, self._plan.request.workload)
        except BaseException:
            with suppress(Exception):  # an error of the storage would hide the reason
                if trial is not None:
                    self._study.tell(trial, state=TrialState.FAIL)
            raise
        self._add(self._model.make_record(config, result), trial)
        if result is not None and self._check.find_cause(result):
            if self._check.reason is not None:
                self._model.allows_workers = False
                self._progress.show_warning(self._check.reason)
            if self._check.flaw is not None and self._model.feasible_count < MIN_DESPITE_FLAW:
                raise self._check.make_error(self._check.flaw)

    def _run_to_the_end(self, config: LoaderConfig) -> TrialResult:
        """Run a trial for the check of failures; a configuration of the space is stored like other trials."""
        result = self._run(config, FULL_LENGTH_PRECISION)
        if self._plan.space.nearest(config) == config:
            self._add(self._model.make_record(config, result))
        return result

    def _run(self, config: LoaderConfig, precision: float = SEARCH_PRECISION) -> TrialResult:
        """Run a trial; one of the search ends early if it is slow."""
        self._progress.show_trial_start(len(self._records) + 1, config)
        best, seconds = self._model.best, SEARCH_SHARE * self._plan.request.trial_seconds
        trial = TrialRequest(config=config, epochs=self._plan.request.epochs, seconds=seconds, precision=precision)
        if best is not None and precision == SEARCH_PRECISION:
            trial = trial.model_copy(update={"prune_below": PRUNE_SHARE * best.samples_per_second})
        return self._run_trial(trial)

    def _add(self, record: TrialRecord, trial: Trial | None = None, *, is_stored: bool = False) -> None:
        """Learn from a record, and store it in the study; None adds a trial that was not proposed."""
        best, rate = self._model.best, record.samples_per_second
        if record.is_feasible:
            improves = best is None or rate > IMPROVEMENT_RATIO * best.samples_per_second
            self._since_improvement = 0 if improves else self._since_improvement + 1
        self._records.append(record)
        self._model.fit(self._records)
        self._progress.show_trial(len(self._records), record, self._model.best is record)
        if not is_stored:
            study.store_record(self._study, self._plan, record, trial)


def choose_seeds(earlier: TunedProfile | None, plan: Plan) -> list[LoaderConfig]:
    """Return the result and the best trials of a complete run on this class of machine, to be tried first."""
    if earlier is None or not earlier.is_validated or not earlier.hardware.is_like(plan.hardware):
        return []
    completed = [one for one in earlier.search.trials if one.status == "completed" and one.samples_per_second]
    best = sorted(completed, key=lambda one: one.samples_per_second or 0.0, reverse=True)
    seeds = dict.fromkeys([earlier.config, *(one.config for one in best)])
    return [config for config in map(plan.space.nearest, list(seeds)[:MAX_SEEDS]) if not plan.describe_excess(config)]
