"""Was the machine quiet enough for these numbers to be believed?

A confidence interval tells how far rounds scatter, not why. Another job on the machine, a host that serves its other
guests, a used-up CPU quota or a processor that grows hot all widen it, and worse, they can shift every round by the
same amount and leave it narrow. The kernel counts the first three, and rounds that are slow for all contestants show
the fourth; this room says in a sentence each what it saw. What cannot be read counts as quiet: no warning rests on a
guess.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from autotune.system.cpu_load import CpuCounters, background_cpus, read_cpu_counters, steal_share, throttled_share
from autotune.units import format_percent

MIN_OTHERS_CPUS: Final = 0.15  # three ticks of the kernel in a reading of 0.2 s, as an idle desktop has by chance
OTHERS_SHARE: Final = 0.05  # of the usable CPUs: a system's own services grow with the machine, and still leave room
MAX_STEAL_SHARE: Final = 0.03  # more is as large as the gains that the confirmation has to tell apart
MAX_THROTTLED_SHARE: Final = 0.1  # a start of workers fills a few periods, a steady load that hits the quota most
MAX_DRIFT: Final = 0.08  # a quiet machine's rounds of fresh processes, averaged over contestants, lie closer together
READING_SECONDS: Final = 0.2  # long against the kernel's tick of 10 ms, short against a measurement
MAX_LOG_CHANGE: Final = 700.0  # exp() of more is no float any longer

ReadCounters = Callable[[], CpuCounters | None]
Sleep = Callable[[float], object]


@dataclass(frozen=True, slots=True)
class Interference:
    """What disturbed a confirmation, as far as the kernel and the rounds tell.

    Attributes:
        others_cpus: CPUs that others kept busy, one reading between two rounds each; empty when unknown.
        steal_share: Stolen time over total CPU time. Near 0 on hardware of one's own; more means that the host
            has more guests than CPUs.
        throttled_share: Throttled periods over periods of the cgroup throttled most. Near 1 when the workers could
            use more than the quota; 0 without a quota.
        drift: Relative distance of the slowest from the fastest round, all contestants together.
    """

    others_cpus: tuple[float, ...] = ()
    steal_share: float = 0.0
    throttled_share: float = 0.0
    drift: float = 0.0


class InterferenceMonitor:
    """Looks around a confirmation and between its rounds; whatever cannot be read counts as quiet.

    Args:
        usable_cpus: CPUs that we may keep busy.
        read: Reads the counters.
        sleep: Waits for so many seconds.
        settle: Ends what of ours is still at work, workers that are being taken down above all.
    """

    def __init__(
        self,
        usable_cpus: float,
        read: ReadCounters = read_cpu_counters,
        sleep: Sleep = time.sleep,
        settle: Callable[[], object] = lambda: None,
    ) -> None:
        self._usable_cpus = usable_cpus
        self._settle = settle
        self._read = read
        self._sleep = sleep
        self._before: CpuCounters | None = None
        self._others: list[float] = []

    def start(self) -> None:
        """Read the counters before the first round, and forget what was seen earlier."""
        self._before = self._read()
        self._others = []

    def measure_others(self) -> None:
        """Measure what others do; to be called between rounds: whatever of ours still runs is ended first."""
        self._settle()
        before = self._read()
        if before is None:
            return
        self._sleep(READING_SECONDS)
        after = self._read()
        if after is not None:
            self._others.append(background_cpus(before, after, READING_SECONDS, self._usable_cpus))

    def finish(self, rounds: Sequence[Sequence[float]]) -> Interference:
        """Sum up what was seen since `start`; the rounds are as `measure_drift` takes them."""
        others, drift = tuple(self._others), measure_drift(rounds)
        before, after = self._before, self._read()
        if before is None or after is None:
            return Interference(others, drift=drift)
        return Interference(others, steal_share(before, after), throttled_share(before, after), drift)


def measure_drift(rounds: Sequence[Sequence[float]]) -> float:
    """Measure how far the rounds lie apart for all contestants together.

    A contestant's rate over its own geometric mean is its opinion of a round; the geometric mean of the opinions is
    how fast the machine was. Whoever was measured in one round only has no opinion, and would only hide the others'.

    Args:
        rounds: For each contestant its throughputs round by round, greater than 0, from the first round on. Lists
            may end early; a rate of 0 or less stands for a round that a contestant did not take part in.

    Returns:
        Fastest over slowest round, minus 1: 0.1 is a machine that became 10 % faster or slower. 0 with fewer than
        two rounds. With a single contestant it is that contestant's own scatter.
    """
    opinions: dict[int, list[float]] = {}
    for rates in rounds:
        for number, opinion in _compare_with_own_mean(rates):
            opinions.setdefault(number, []).append(opinion)
    paces = [statistics.fmean(of_round) for of_round in opinions.values()]
    return math.expm1(min(max(paces) - min(paces), MAX_LOG_CHANGE)) if paces else 0.0


def _compare_with_own_mean(rates: Sequence[float]) -> list[tuple[int, float]]:
    """Give each round's number with the logarithm of rate over geometric mean; nothing for a single round."""
    logs = [(number, math.log(rate)) for number, rate in enumerate(rates) if 0 < rate < math.inf]
    if len(logs) < 2:
        return []
    mean = statistics.fmean(log for _, log in logs)
    return [(number, log - mean) for number, log in logs]


def describe_interference(seen: Interference, usable_cpus: float) -> tuple[str, ...]:
    """Give a sentence for each disturbance beyond its limit, with the next step; none when the machine was quiet."""
    return tuple(_list_disturbances(seen, usable_cpus))


def _list_disturbances(seen: Interference, usable_cpus: float) -> Iterator[str]:
    others = statistics.median(seen.others_cpus) if seen.others_cpus else 0.0
    max_others = max(MIN_OTHERS_CPUS, OTHERS_SHARE * usable_cpus)
    if others > max_others:
        yield (
            f"Other processes kept {_write_cpus(others)} CPUs busy during the confirmation "
            f"(limit {_write_cpus(max_others)} where {_write_cpus(usable_cpus)} are usable): "
            "stop them and tune again, or trust the interval only as far as that load stays."
        )
    if seen.steal_share > MAX_STEAL_SHARE:
        yield (
            f"The host gave {_write_percent(seen.steal_share)} of the CPU time to other virtual machines during the "
            f"confirmation (limit {format_percent(MAX_STEAL_SHARE)}): tune again at a quieter hour or on a machine "
            "with CPUs of its own, or trust the interval only as far as its neighbours stay as they were."
        )
    if seen.throttled_share > MAX_THROTTLED_SHARE:
        yield (
            f"The CPU quota was used up in {_write_percent(seen.throttled_share)} of its periods during the "
            f"confirmation (limit {format_percent(MAX_THROTTLED_SHARE)}): this is expected where workers saturate the "
            "quota. If training will have a larger quota, or shares this one with other processes, tune again as it "
            "will run."
        )
    if seen.drift > MAX_DRIFT:
        yield (
            f"The machine became {_write_percent(seen.drift)} slower or faster between rounds "
            f"(limit {format_percent(MAX_DRIFT)}): look for other load, heat or power saving and tune again. "
            "Speed-ups compare rates of the same round and suffer little; the throughput itself is less certain."
        )


def _write_cpus(cpus: float) -> str:
    """Write CPUs with at most two decimals, as in `0.7` or `2`."""
    return f"{cpus:.2f}".rstrip("0").rstrip(".")


def _write_percent(share: float) -> str:
    """Write a share with a decimal, for a whole percentage could equal the limit it is beyond."""
    return f"{share * 100:.1f} %"
