"""Detects disturbances of the machine during the validation.

A confidence interval shows how far runs scatter, not why; a disturbance of all runs leaves it narrow. The kernel counts
CPU time of other processes and virtual machines, and used-up quotas; heat and power saving slow all configurations of a
run. Counters that cannot be read are ignored.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from autotune.system.cgroups import CpuCounters, background_cpus, read_cpu_counters, steal_share, throttled_share

MIN_OTHERS_CPUS: Final = 0.15  # three kernel ticks in a reading of 0.2 s, which an idle desktop has by chance
OTHERS_SHARE: Final = 0.05  # of the usable CPUs: the system's own services grow with the machine
MAX_STEAL_SHARE: Final = 0.03  # more is as large as the gains that the validation must detect
MAX_THROTTLED_SHARE: Final = 0.1  # starting workers fills a few periods, a constant load at the quota most of them
MAX_DRIFT: Final = 0.08  # runs in fresh processes on a quiet machine, averaged over configurations, differ by less
READING_SECONDS: Final = 0.2  # long compared with the kernel's tick of 10 ms, short compared with a measurement


@dataclass(slots=True)
class NoiseMonitor:
    """Reads the kernel's counters around a validation and between its runs."""

    usable_cpus: float
    read: Callable[[], CpuCounters | None] = read_cpu_counters
    sleep: Callable[[float], object] = time.sleep
    stop_children: Callable[[], object] = lambda: None  # dltune's own, such as workers that are shutting down
    _before: CpuCounters | None = None
    _others: list[float] = field(default_factory=list)

    def start(self) -> None:
        """Read the counters before the first run, and forget earlier readings."""
        self._before = self.read()
        self._others = []

    def measure_others(self) -> None:
        """Measure the CPU load of other processes between two runs, after ending dltune's own processes."""
        self.stop_children()
        before = self.read()
        if before is not None:
            self.sleep(READING_SECONDS)
            after = self.read()
            if after is not None:
                self._others.append(background_cpus(before, after, READING_SECONDS, self.usable_cpus))

    def describe(self, rates: Sequence[Mapping[int, float]]) -> tuple[str, ...]:
        """Return a sentence for each disturbance since `start` beyond its limit; `rates` as in `measure_drift`."""
        before, after, usable, found = self._before, self.read(), self.usable_cpus, list[str]()
        busy, limit = statistics.median(self._others or [0.0]), max(MIN_OTHERS_CPUS, OTHERS_SHARE * usable)
        if busy > limit:
            found.append(
                f"Other processes kept {busy:.2g} CPUs busy during the validation (limit {limit:.2g} of {usable:g} "
                "usable): stop them and tune again."
            )
        if before is not None and after is not None and (steal := steal_share(before, after)) > MAX_STEAL_SHARE:
            found.append(
                f"The host gave {steal:.1%} of the CPU time to other virtual machines during the validation (limit "
                f"{MAX_STEAL_SHARE:.0%}): tune again when the host is less busy, or on dedicated CPUs."
            )
        if before is not None and after is not None and (used := throttled_share(before, after)) > MAX_THROTTLED_SHARE:
            found.append(
                f"The CPU quota was used up in {used:.1%} of its periods during the validation (limit "
                f"{MAX_THROTTLED_SHARE:.0%}), as expected if workers saturate it: tune again if training has another."
            )
        if (drift := measure_drift(rates)) > MAX_DRIFT:
            found.append(
                f"The machine became {drift:.1%} slower or faster between runs (limit {MAX_DRIFT:.0%}): check for "
                "other load, heat or power saving, and tune again. Speedups compare the same runs and hardly change."
            )
        return tuple(found)


def measure_drift(rates: Sequence[Mapping[int, float]]) -> float:
    """Measure how much the machine changed between runs: the fastest over the slowest run, minus 1.

    `rates` has for each configuration its throughputs by the number of the run. Each is compared with the geometric
    mean of its configuration; these ratios are averaged over the configurations of a run.
    """
    changes: dict[int, list[float]] = {}
    for of_config in rates:
        mean = statistics.fmean(map(math.log, of_config.values())) if of_config else 0.0
        for number, rate in of_config.items() if len(of_config) > 1 else ():
            changes.setdefault(number, []).append(math.log(rate) - mean)
    paces = [statistics.fmean(of_run) for of_run in changes.values()]
    return math.expm1(max(paces) - min(paces)) if paces else 0.0
