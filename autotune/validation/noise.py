"""Detects disturbances of the machine during the validation, and how much it changed since the search."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from autotune.config import LoaderConfig
from autotune.system.cgroups import CpuCounters, background_cpus, read_cpu_counters, steal_share, throttled_share
from autotune.validation.candidate_runs import CandidateRuns

MIN_OTHERS_CPUS: Final = 0.15  # three kernel ticks in a reading of 0.2 s, which an idle desktop has by chance
OTHERS_SHARE: Final = 0.05  # of the usable CPUs: the system's own services grow with the machine
MAX_STEAL_SHARE: Final = 0.03  # more is as large as the gains that the validation must detect
MAX_THROTTLED_SHARE: Final = 0.1  # starting workers fills a few periods, a constant load at the quota most of them
MAX_DRIFT: Final = 0.08  # runs in fresh processes on a quiet machine, averaged over configurations, differ by less
READING_SECONDS: Final = 0.2  # long compared with the kernel's tick of 10 ms, short compared with a measurement


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
                f"Other processes used {busy:.0%} of a CPU during the validation (limit {limit:.0%}; usable CPUs: "
                f"{usable:g}): stop them and tune again."
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
            change = f"by {drift:.1%}" if drift < 1 else f"by a factor of {1 + drift:.3g}"
            yield (
                f"The speed of the machine changed {change} between runs (limit {MAX_DRIFT:.0%}): check for "
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
