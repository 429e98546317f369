"""Detects disturbances of the machine during the validation.

A confidence interval shows how far runs scatter, not why; and a disturbance of all runs leaves it narrow. The kernel
counts the CPU time of other processes, of other virtual machines and of a used-up quota; heat and power saving show in
runs that are slow for all configurations. Counters that cannot be read are ignored.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from autotune.system.cpu_load import CpuCounters, background_cpus, read_cpu_counters, steal_share, throttled_share

MIN_OTHERS_CPUS: Final = 0.15  # three kernel ticks in a reading of 0.2 s, which an idle desktop has by chance
OTHERS_SHARE: Final = 0.05  # of the usable CPUs: the system's own services grow with the machine
MAX_STEAL_SHARE: Final = 0.03  # more is as large as the gains that the validation must detect
MAX_THROTTLED_SHARE: Final = 0.1  # starting workers fills a few periods, a constant load at the quota most of them
MAX_DRIFT: Final = 0.08  # runs in fresh processes on a quiet machine, averaged over configurations, differ by less
READING_SECONDS: Final = 0.2  # long compared with the kernel's tick of 10 ms, short compared with a measurement


class NoiseMonitor:
    """Reads the kernel's counters around a validation and between its runs.

    Args:
        usable_cpus: CPUs that dltune may keep busy.
        read: Reads the counters.
        sleep: Sleeps for this many seconds.
        stop_children: Ends dltune's own processes, such as workers that are shutting down.
    """

    def __init__(
        self,
        usable_cpus: float,
        read: Callable[[], CpuCounters | None] = read_cpu_counters,
        sleep: Callable[[float], object] = time.sleep,
        stop_children: Callable[[], object] = lambda: None,
    ) -> None:
        self._usable_cpus = usable_cpus
        self._read = read
        self._sleep = sleep
        self._stop_children = stop_children
        self._before: CpuCounters | None = None
        self._others: list[float] = []

    def start(self) -> None:
        """Read the counters before the first run, and forget earlier readings."""
        self._before = self._read()
        self._others = []

    def measure_others(self) -> None:
        """Measure the CPU load of other processes between two runs, after ending dltune's own processes."""
        self._stop_children()
        before = self._read()
        if before is not None:
            self._sleep(READING_SECONDS)
            after = self._read()
            if after is not None:
                self._others.append(background_cpus(before, after, READING_SECONDS, self._usable_cpus))

    def describe(self, rates: Sequence[Mapping[int, float]]) -> tuple[str, ...]:
        """Return a sentence for each disturbance since `start` beyond its limit; `rates` as in `measure_drift`."""
        before, after = self._before, self._read()
        steal, throttled = 0.0, 0.0
        if before is not None and after is not None:
            steal, throttled = steal_share(before, after), throttled_share(before, after)
        return tuple(describe_noise(self._others, self._usable_cpus, steal, throttled, measure_drift(rates)))


def measure_drift(rates: Sequence[Mapping[int, float]]) -> float:
    """Measure how much faster or slower the machine became between runs.

    Each rate is compared with the geometric mean of its configuration, and these ratios are averaged over all
    configurations of a run. A configuration that was measured once shows nothing.

    Args:
        rates: For each configuration its throughputs, greater than 0, by the number of the run.

    Returns:
        Fastest over slowest run, minus 1: 0.1 is a change of 10%. 0 for fewer than two runs.
    """
    changes: dict[int, list[float]] = {}
    for of_config in rates:
        mean = statistics.fmean(map(math.log, of_config.values())) if of_config else 0.0
        for number, rate in of_config.items() if len(of_config) > 1 else ():
            changes.setdefault(number, []).append(math.log(rate) - mean)
    paces = [statistics.fmean(of_run) for of_run in changes.values()]
    return math.expm1(max(paces) - min(paces)) if paces else 0.0


def describe_noise(
    others_cpus: Sequence[float], usable_cpus: float, steal: float, throttled: float, drift: float
) -> Iterator[str]:
    """Yield a sentence for each disturbance beyond its limit, with the next step.

    Args:
        others_cpus: CPUs that other processes kept busy, one reading before each run.
        usable_cpus: CPUs that dltune may keep busy.
        steal: Share of the CPU time that the host gave to other virtual machines.
        throttled: Share of throttled periods of the cgroup that was throttled most.
        drift: Relative difference between the slowest and the fastest run.
    """
    busy, limit = statistics.median(others_cpus or [0.0]), max(MIN_OTHERS_CPUS, OTHERS_SHARE * usable_cpus)
    if busy > limit:
        yield (
            f"Other processes kept {busy:.2g} CPUs busy during the validation (limit {limit:.2g} of {usable_cpus:g} "
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
            f"{MAX_THROTTLED_SHARE:.0%}), as expected if workers saturate it: tune again if training has another quota."
        )
    if drift > MAX_DRIFT:
        yield (
            f"The machine became {drift:.1%} slower or faster between runs (limit {MAX_DRIFT:.0%}): check for other "
            "load, heat or power saving, and tune again. Speedups compare rates of the same run and are hardly affected."
        )
