"""Measures the best configurations and the baseline again in alternating runs, and detects a noisy machine.

The best of many noisy measurements is biased upwards; measuring it again, in fresh processes, removes the bias.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from autotune.config import Interval, LoaderConfig
from autotune.errors import capture_interruption
from autotune.profiles.schema import BatchWaits, CandidateResult
from autotune.progress import ProgressListener
from autotune.protocol.measurement import Measurement, TrialResult
from autotune.protocol.messages import NewProcess, RunTrial, TrialRequest
from autotune.protocol.statistics import paired_ratio, throughput_ci95
from autotune.protocol.throughput import estimate
from autotune.request import TuningRequest
from autotune.search.plan import Plan
from autotune.system.cgroups import CpuCounters, background_cpus, read_cpu_counters, steal_share, throttled_share

MIN_RUNS: Final = 2
MAX_RUNS: Final = 5  # while a speedup is not certain, by an interval corrected for looking at it after every run
MIN_SPEEDUP: Final = 1.02  # over the baseline or over unchanged training; a smaller one is no gain
WORTHWHILE_CHANGE: Final = 1.05  # speedup by a change of training; while it is uncertain, there are more runs as well
MAX_SCATTERED_RUNS: Final = 3  # while only the fastest one's runs differ: one outlier does not move a median of three
VALIDATION_PRECISION: Final = 0.015  # relative half-width of the interval at which a measurement may end early
FAR_AHEAD_SPEEDUP: Final = 1.5  # of the fastest over the baseline; above it, one run of the baseline is enough
MAX_RUN_SPREAD: Final = 1.12  # fastest over slowest run of one configuration; above it another run is worth its time
MAX_RUN_ERROR: Final = 0.15  # half-width of the interval of a run; one that is less precise does not show the machine
DROP_BELOW_RATIO: Final = {1: 0.93, 2: 0.96}  # of the fastest, by completed runs; slower candidates are dropped
MAX_START_SECONDS: Final = 5.0  # of a new interpreter, above which a configuration's later runs are forks
MAX_FAILURES: Final = 2  # of one configuration: the first failed run is repeated, the second rules it out
MIN_WAITS: Final = 20  # batches; percentiles of fewer are unreliable
MIN_OTHERS_CPUS: Final = 0.15  # three kernel ticks in a reading of 0.2 s, which an idle desktop has by chance
OTHERS_SHARE: Final = 0.05  # of the usable CPUs: the system's own services grow with the machine
MAX_STEAL_SHARE: Final = 0.03  # more is as large as the gains that the validation must detect
MAX_THROTTLED_SHARE: Final = 0.1  # starting workers fills a few periods, a constant load at the quota most of them
MAX_DRIFT: Final = 0.08  # runs in fresh processes on a quiet machine, averaged over configurations, differ by less
READING_SECONDS: Final = 0.2  # long compared with the kernel's tick of 10 ms, short compared with a measurement


class CandidateRuns:
    """The measurements of one configuration; the peaks are those of a profile."""

    def __init__(self, config: LoaderConfig) -> None:
        self.config = config
        self.rates = dict[int, float]()  # samples per second, by the number of the run
        self._errors = list[float]()  # relative half-widths of the 95% interval of each run
        self.measurements, self.failures, self._wait_shares = list[Measurement](), list[TrialResult](), list[float]()
        self.start_seconds = 0.0  # of the slowest run: its process, imports and dataset
        self.peak_host_bytes = self.peak_shm_bytes = self.peak_gpu_bytes = 0

    def add(self, number: int, result: TrialResult, epochs: int) -> None:
        """Add the result of run `number`; throughput is that of a training run of `epochs` epochs."""
        self.peak_host_bytes = max(self.peak_host_bytes, result.peak_host_bytes)
        self.peak_shm_bytes = max(self.peak_shm_bytes, result.peak_shm_bytes)
        if result.status != "completed":
            self.failures.append(result)
        if result.measurement is None:
            return
        found = estimate(result.measurement, result.config, epochs)
        self.rates[number] = found.samples_per_second
        self._errors.append(found.relative_error)
        self._wait_shares.append(found.wait_share)
        measured = sum(trace.end_seconds for trace in result.measurement.epochs)
        self.start_seconds = max(self.start_seconds, result.seconds - measured)
        self.measurements.append(result.measurement)
        self.peak_gpu_bytes = max(self.peak_gpu_bytes, result.measurement.peak_gpu_bytes)

    @property
    def is_out(self) -> bool:
        """Whether it failed too often to be recommended."""
        return len(self.failures) >= MAX_FAILURES

    @property
    def rate(self) -> float:
        """Median throughput in samples per second; 0 if it never ran or is out."""
        return statistics.median(self.rates.values()) if self.rates and not self.is_out else 0.0

    @property
    def is_precise(self) -> bool:
        """Whether differences between its runs show the machine, not the few batches of a slow run."""
        return bool(self._errors) and statistics.median(self._errors) <= MAX_RUN_ERROR

    @property
    def wait_share(self) -> float:
        """Share of the time that the training loop waits for data."""
        return statistics.fmean(self._wait_shares) if self._wait_shares else 0.0

    def ci95(
        self, field: Sequence[CandidateRuns] = (), others: Sequence[CandidateRuns] = (), change: float = 1.0
    ) -> Interval | None:
        """Compute the 95% interval of its throughput in training.

        `field` are all candidates, and `others` show the noise, too. `change` is how many times as fast the machine
        became before the runs.
        """
        precise = (other for other in (*field, *others) if other is not self and other.is_precise)
        scatter = [list(other.rates.values()) for other in precise]
        scatter += [[1.0, change]] if change != 1.0 and len(self.rates) > 1 else []  # one run has no interval
        return throughput_ci95(list(self.rates.values()), max(1, len(field)), scatter)

    def compare(
        self, other: CandidateRuns, field: Sequence[CandidateRuns] = (), looks: int = 1
    ) -> tuple[float, Interval | None]:
        """Compute the median ratio to another configuration over the runs of both, and its interval as in `ci95`.

        `looks` is how often the interval may be looked at before runs end (Bonferroni correction).
        """
        numbers, picked_of = [number for number in self.rates if number in other.rates], looks * max(1, len(field))
        if not numbers:
            return self.rate / other.rate, None
        if len(other.rates) == 1:  # no ratio shows how much runs vary, the rates of the field do
            return paired_ratio([self.rate], [other.rate], picked_of, [list(one.rates.values()) for one in field])
        competing, bases = (one.rates for one in field if one not in {self, other}), other.rates
        scatter = [[rate / bases[number] for number, rate in rates.items() if number in bases] for rates in competing]
        values, others = ([one.rates[number] for number in numbers] for one in (self, other))
        return paired_ratio(values, others, picked_of, scatter)

    def is_faster_than(
        self, other: CandidateRuns, min_speedup: float, field: Sequence[CandidateRuns] = (), floor: float = 1.0
    ) -> bool:
        """Return whether the speedup reaches a minimum, and its interval lies above a floor."""
        speedup, interval = self.compare(other, field)
        return speedup >= min_speedup and (interval is None or interval[0] > floor)

    @property
    def batch_waits(self) -> BatchWaits | None:
        """Percentiles of the wait for a batch; None for few batches."""
        waits = [wait for found in self.measurements for trace in found.epochs for wait in trace.batch_waits[1:]]
        if len(waits) < MIN_WAITS:
            return None
        centiles = statistics.quantiles(waits, n=100, method="inclusive")
        return BatchWaits(p50=centiles[49], p95=centiles[94], p99=centiles[98])

    @property
    def rank_wait_seconds(self) -> tuple[float, ...]:
        """Mean wait for a batch of each training process; empty for one process."""
        by_rank = zip(*(one.ranks for one in self.measurements if one.ranks), strict=False)
        return tuple(sum(one.wait_seconds for one in runs) / max(1, sum(one.steps for one in runs)) for runs in by_rank)

    def record(self) -> CandidateResult:
        """Return the raw runs as a profile stores them."""
        failures = (f"{failure.status}: it {failure.message}" for failure in self.failures)
        return CandidateResult(config=self.config, runs=dict(self.rates), failures=tuple(failures))


@dataclass(slots=True)
class NoiseMonitor:
    """Detects disturbances of all runs, which intervals do not show, by the kernel's counters and the pace of runs."""

    usable_cpus: float
    read: Callable[[], CpuCounters] = read_cpu_counters
    sleep: Callable[[float], object] = time.sleep
    stop_children: Callable[[], object] = lambda: None  # dltune's own, such as workers that are shutting down
    _first: CpuCounters | None = None
    _others: list[float] = field(default_factory=list)

    def measure_others(self) -> None:
        """Measure the CPU load of other processes before a run, after ending dltune's own processes."""
        self.stop_children()
        before = self.read()
        self.sleep(READING_SECONDS)
        self._others.append(background_cpus(before, self.read(), READING_SECONDS, self.usable_cpus))
        self._first = self._first or before

    def describe(self, rates: Sequence[Mapping[int, float]]) -> Iterator[str]:
        """Yield a sentence for each disturbance beyond its limit; `rates` as in `measure_drift`."""
        if self._first is None:  # stopped before the first run
            return
        after, usable = self.read(), self.usable_cpus
        steal, throttled = steal_share(self._first, after), throttled_share(self._first, after)
        busy, limit = statistics.median(self._others), max(MIN_OTHERS_CPUS, OTHERS_SHARE * usable)
        if busy > limit:
            yield (
                f"Other processes kept {busy:.2g} CPUs busy during the validation (limit {limit:.2g} of {usable:g} "
                "usable): stop them and tune again."
            )
        if steal > MAX_STEAL_SHARE:
            yield (
                f"The host gave {steal:.1%} of the CPU time to other virtual machines during the validation (limit "
                f"{MAX_STEAL_SHARE:.0%}): tune again when the host is less busy, or on dedicated CPUs."
            )
        if throttled > MAX_THROTTLED_SHARE:
            yield (
                f"The CPU quota was used up in {throttled:.1%} of its periods during the validation (limit "
                f"{MAX_THROTTLED_SHARE:.0%}), as expected if workers saturate it: tune again if training has another."
            )
        if (drift := measure_drift(rates)) > MAX_DRIFT:
            yield (
                f"The machine became {drift:.1%} slower or faster between runs (limit {MAX_DRIFT:.0%}): check for "
                "other load, heat or power saving, and tune again. Speedups compare the same runs and hardly change."
            )


def measure_drift(rates: Sequence[Mapping[int, float]]) -> float:
    """Measure how much the machine changed between runs: the fastest over the slowest run, minus 1.

    `rates` has the throughputs of each configuration by the number of the run; a run is as fast as the mean of their
    ratios to the geometric means of their configurations.
    """
    changes: dict[int, list[float]] = {}
    for of_config in (one for one in rates if len(one) > 1):
        mean = statistics.fmean(map(math.log, of_config.values()))
        for number, rate in of_config.items():
            changes.setdefault(number, []).append(math.log(rate) - mean)
    paces = [statistics.fmean(of_run) for of_run in changes.values()]
    return math.expm1(max(paces) - min(paces)) if paces else 0.0


def measure_change(measured: Sequence[CandidateRuns], trial_rates: Mapping[LoaderConfig, float]) -> float:
    """Measure how many times as fast the machine became from the search to the validation.

    That is the median ratio over the configurations that both measured; 1 if there is none.
    """
    known = [one for one in measured if one.rate and one.is_precise and one.config in trial_rates]
    ratios = [one.rate / trial_rates[one.config] for one in known]
    return statistics.median(ratios) if ratios else 1.0


@dataclass(frozen=True, slots=True)
class Validation:
    """Measurements of the validation, complete or interrupted."""

    baseline: CandidateRuns
    candidates: tuple[CandidateRuns, ...] = ()  # that were not dropped
    measured: tuple[CandidateRuns, ...] = ()  # the baseline and all candidates, with those that were dropped
    runs: int = 0  # complete ones
    noise: tuple[str, ...] = ()  # sentences on disturbances of the machine
    interrupted_by: BaseException | None = None


def validate(
    plan: Plan,
    choose: Callable[[], Sequence[LoaderConfig]],
    run_trial: RunTrial,
    progress: ProgressListener,
    monitor: NoiseMonitor | None = None,
    has_time: Callable[[int], bool] = lambda count: True,
) -> Validation:
    """Measure the baseline and the configurations that `choose` returns in alternating runs, until the result is clear.

    `has_time` returns whether there is time for this many more measurements; the baseline and the first candidate are
    measured once in any case.
    """
    baseline, candidates, measured = CandidateRuns(plan.baseline), list[CandidateRuns](), tuple[CandidateRuns, ...]()
    runs, is_whole = 0, True
    with capture_interruption() as interruption:
        candidates = [CandidateRuns(config) for config in choose() if config != plan.baseline]
        measured, active = (baseline, *candidates), [baseline, *candidates]
        while active and is_whole and (not runs or has_time(len(active))):
            if monitor is not None:
                monitor.measure_others()
            first = runs % len(active)  # each run begins with another configuration
            for position, one in enumerate((*active[first:], *active[:first])):
                if (runs or position >= 2) and not has_time(1):
                    is_whole = False
                    break
                while not measure_run(plan.request, one, run_trial, progress, runs + 1) and not one.is_out:
                    pass  # a failed run is repeated
            runs += is_whole or not runs
            candidates, active = _plan_next_run(plan, runs, baseline, candidates, measured[1:])
    noise = () if monitor is None else tuple(monitor.describe([one.rates for one in measured]))
    return Validation(baseline, tuple(candidates), measured, runs, noise, interruption.cause)


def _plan_next_run(
    plan: Plan, runs: int, baseline: CandidateRuns, candidates: list[CandidateRuns], field: Sequence[CandidateRuns]
) -> tuple[list[CandidateRuns], list[CandidateRuns]]:
    """Return the candidates that may still win, and the configurations to measure next: none if the result is clear.

    The variants of the fastest with default values or unchanged training stay: they show what its settings gain. Only
    the fastest is compared further with the baseline. A baseline that is far behind after one run rests. The best is
    selected from the whole `field`, in which are those that were dropped.
    """
    candidates = [one for one in candidates if one.rate]
    best = max(candidates or [baseline], key=lambda one: one.rate)
    variants = {keep(best.config) for keep in (plan.keep_order, plan.default_variant, plan.keep_training)}
    needed = [one for one in candidates if one is best or one.config in variants]
    floor = DROP_BELOW_RATIO.get(runs, 0.0) * best.rate
    candidates = [one for one in candidates if one in needed or one.rate >= floor]
    rates = best.rates.values() or (1.0,)
    is_scattered = runs < MAX_SCATTERED_RUNS and max(rates) > MAX_RUN_SPREAD * min(rates)
    alternative = find_alternative(plan, best, needed)
    is_far_behind = len(baseline.rates) == 1 and best.rate > FAR_AHEAD_SPEEDUP * baseline.rate
    active = list[CandidateRuns]()
    if runs < MIN_RUNS:
        active = candidates if is_far_behind else [baseline, *candidates]
    elif runs < MAX_RUNS and not is_far_behind and _is_open(best, baseline, MIN_SPEEDUP, field, MAX_RUNS):
        active = [baseline, best]
    elif is_scattered:
        active = needed
    elif alternative is not None and runs < MAX_RUNS and _is_open(best, alternative, WORTHWHILE_CHANGE, field):
        active = [best, alternative]
    return candidates, [one for one in active if not one.is_out]


def find_alternative(plan: Plan, runs: CandidateRuns, others: Sequence[CandidateRuns]) -> CandidateRuns | None:
    """Return the fastest of the others that changes less of the training; None if there is none."""
    changes = len(plan.list_training_changes(runs.config))
    fewer = (one for one in others if len(plan.list_training_changes(one.config)) < changes)
    return max(fewer, key=lambda one: one.rate, default=None)


def _is_open(
    best: CandidateRuns, other: CandidateRuns, min_speedup: float, field: Sequence[CandidateRuns], looks: int = 1
) -> bool:
    """Return whether the best is faster than another one by more than this, which further runs may show for certain.

    Up to MAX_RUNS, an interval narrows at most with the square of the number of runs: by the mean, by the quantile of
    Student's t, and by a spread below the usual one.
    """
    if best is other or not (best.rate and other.rate):
        return False
    speedup, interval = best.compare(other, field, looks)
    if interval is None or speedup <= min_speedup or interval[0] > 1:
        return False
    low, high = (math.log(end) for end in interval)
    return low + high > (high - low) * (min(len(best.rates), len(other.rates)) / MAX_RUNS) ** 2


def measure_run(
    request: TuningRequest, runs: CandidateRuns, run_trial: RunTrial, progress: ProgressListener, number: int
) -> bool:
    """Measure a configuration once in a fresh process; return whether the run completed.

    A process that loads data itself is a new interpreter, as in training. All forks of a supervisor inherit one layout
    of its memory: without workers, samples of 4 MiB are loaded at 225 or at 320 per second, depending on it. If its
    start takes longer than several runs, as with large libraries, only the first run is one. The medians of eight forks
    and eight interpreters with Transformers differed by 3%.
    """
    progress.show_run(number, runs.config, None)
    seeks_end = all(one.epoch_batches is not None for one in runs.measurements)  # else it takes too long
    is_fork = runs.config.dataloader.num_workers or runs.start_seconds > MAX_START_SECONDS
    kind: NewProcess = "fork" if is_fork else "interpreter"
    trial = TrialRequest(
        config=runs.config,
        epochs=request.epochs,
        seconds=request.trial_seconds,
        seeks_end=seeks_end,
        precision=VALIDATION_PRECISION,
        new_process=kind,
    )
    result = run_trial(trial)
    runs.add(number, result, request.epochs)
    progress.show_run(number, runs.config, 0.0 if result.measurement is None else runs.rates[number])
    return result.measurement is not None
