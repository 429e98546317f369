"""Was the machine quiet enough for these numbers to be believed?

A confidence interval tells how far rounds scatter, not why. Another job on the machine, a host that serves its other
guests, a used-up CPU quota or a processor that grows hot all widen it, and worse, they can shift every round by the
same amount and leave it narrow. The kernel counts the first three, and rounds that are slow for all contestants betray
the fourth; this room says in a sentence each what it saw. What cannot be read counts as quiet: no warning rests on a
guess.
"""

from __future__ import annotations

import math
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from autotune.config import Count, Fraction, FrozenModel, Seconds
from autotune.system.machine import CGROUP, PROC, read_text, walk_ancestors
from autotune.units import format_percent

Cpus = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Change = Annotated[float, Field(ge=0, allow_inf_nan=False)]

MIN_OTHERS_CPUS: Final = 0.15  # three ticks of the kernel in a reading of 0.2 s, as an idle desktop has by chance
OTHERS_SHARE: Final = 0.05  # of the usable CPUs: a system's own services grow with the machine, and still leave room
STOLEN_LIMIT: Final = 0.03  # of CPU time: more is as large as the gains that the confirmation has to tell apart
THROTTLED_LIMIT: Final = 0.1  # of periods: a start of workers fills a few, a steady load that hits the quota fills most
DRIFT_LIMIT: Final = 0.08  # a quiet machine's rounds of fresh processes, averaged over contestants, lie closer together
READING_SECONDS: Final = 0.2  # long against the kernel's tick of 10 ms, short against a measurement
MAX_LOG_CHANGE: Final = 700.0  # exp() of more is no float any longer

_CPU_LINE: Final = re.compile(r"cpu((?: +\d{1,20}){4,})\s*", re.ASCII)  # the kernel's counters have 64 bits
_PERIODS: Final = re.compile(r"^nr_periods (\d{1,20})$", re.ASCII | re.MULTILINE)
_THROTTLED: Final = re.compile(r"^nr_throttled (\d{1,20})$", re.ASCII | re.MULTILINE)
_STOPPED: Final = re.compile(r"^throttled_(usec|time) (\d{1,20})$", re.ASCII | re.MULTILINE)
_STOPPED_UNITS: Final = {"usec": 1e-6, "time": 1e-9}  # seconds; version 2 counts microseconds, version 1 nanoseconds


class CpuThrottling(FrozenModel):
    """How often one cgroup's CPU quota was used up, since the cgroup was made.

    Attributes:
        periods: Enforcement periods in which the cgroup ran; 0 for ever without a quota.
        throttled_periods: Those in which it had to stop before the period's end.
        throttled_seconds: How long its CPUs were stopped, all together; 0 where the kernel does not tell.
    """

    periods: Count
    throttled_periods: Count
    throttled_seconds: Seconds = 0.0

    @property
    def throttled_share(self) -> float:
        """Share of the periods in which it had to stop, between 0 and 1; 0 where none has passed."""
        return _divide(self.throttled_periods, self.periods)


class CpuCounters(FrozenModel):
    """What the kernel has counted so far; only the difference of two readings means something.

    Attributes:
        busy_seconds: CPU time of all processes and of the kernel, over all CPUs of the machine.
        total_seconds: The same with idle, waiting and stolen time: CPUs x time since boot.
        stolen_seconds: CPU time that the host gave to other guests while this one wanted to run.
        quotas: Use of the CPU quota of our own cgroup and of each ancestor, our own first.
    """

    busy_seconds: Seconds
    total_seconds: Seconds
    stolen_seconds: Seconds
    quotas: tuple[CpuThrottling, ...] = ()


Read = Callable[[], CpuCounters | None]
Sleep = Callable[[float], object]


class Interference(FrozenModel):
    """What disturbed a confirmation, as far as the kernel and the rounds tell.

    Attributes:
        others_cpus: CPUs that others kept busy, one reading between two rounds each; empty when unknown.
        stolen_share: Stolen time over total CPU time. Near 0 on hardware of one's own; more means that the host
            has more guests than CPUs.
        throttled_share: Throttled periods over periods of the cgroup throttled most. Near 1 when the workers could
            use more than the quota; 0 without a quota.
        drift: Relative distance of the slowest from the fastest round, all contestants together.
    """

    others_cpus: tuple[Cpus, ...] = ()
    stolen_share: Fraction = 0.0
    throttled_share: Fraction = 0.0
    drift: Change = 0.0


def read_cpu_times(root: Path = Path("/")) -> CpuCounters | None:
    """Read the kernel's counters of CPU time and of quota use.

    Args:
        root: Folder that holds `proc` and `sys/fs/cgroup`.

    Returns:
        The counters of this moment; None where /proc/stat cannot be read.
    """
    proc, cgroup = (root / path.relative_to("/") for path in (PROC, CGROUP))
    ticks = _read_ticks(proc)
    if ticks is None:
        return None
    user, nice, system, idle, waiting, irq, softirq, stolen = ticks
    busy = user + nice + system + irq + softirq
    tick_seconds = 1 / os.sysconf("SC_CLK_TCK")
    return CpuCounters(
        busy_seconds=busy * tick_seconds,
        total_seconds=(busy + idle + waiting + stolen) * tick_seconds,
        stolen_seconds=stolen * tick_seconds,
        quotas=read_quota_uses(proc, cgroup),
    )


def _read_ticks(proc: Path) -> list[int] | None:
    """Read the first eight columns of /proc/stat, 0 for those an old kernel lacks.

    The two columns that follow, time given to guests of our own, are contained in user and nice.
    """
    lines = read_text(proc / "stat").splitlines()
    found = _CPU_LINE.fullmatch(lines[0]) if lines else None
    if found is None:
        return None
    return [*map(int, found[1].split()), *[0] * 4][:8]


def read_quota_uses(proc: Path = PROC, cgroup: Path = CGROUP) -> tuple[CpuThrottling, ...]:
    """Read how often the CPU quotas that hold for us were used up, since their cgroups were made.

    Args:
        proc: Where procfs is mounted.
        cgroup: Where cgroups are mounted.

    Returns:
        The use of our own cgroup's quota and of each ancestor's, our own first; empty where none has one.
    """
    folders = (folder for controller in ("", "cpu") for folder in walk_ancestors(proc, cgroup, controller))
    uses = (_read_quota_use(folder) for folder in folders)  # version 2, then version 1
    return tuple(use for use in uses if use is not None)


def _read_quota_use(folder: Path) -> CpuThrottling | None:
    text = read_text(folder / "cpu.stat")
    periods, throttled, stopped = (pattern.search(text) for pattern in (_PERIODS, _THROTTLED, _STOPPED))
    if periods is None or throttled is None:
        return None
    seconds = int(stopped[2]) * _STOPPED_UNITS[stopped[1]] if stopped is not None else 0.0
    return CpuThrottling(periods=int(periods[1]), throttled_periods=int(throttled[1]), throttled_seconds=seconds)


def measure_background_load(
    usable_cpus: float, seconds: float = READING_SECONDS, read: Read = read_cpu_times, sleep: Sleep = time.sleep
) -> float | None:
    """Measure how many of the usable CPUs others keep busy: call it while our own processes are idle.

    Args:
        usable_cpus: CPUs that we may keep busy; the machine may have more, and others are welcome to those.
        seconds: How long to look; shorter than a few ticks of 10 ms tells nothing.
        read: Reads the counters.
        sleep: Waits for so many seconds.

    Returns:
        CPUs that others took from those we may use; None where the counters cannot be read.
    """
    before = read()
    if before is None:
        return None
    sleep(seconds)
    after = read()
    if after is None:
        return None
    busy_cpus = (after.busy_seconds - before.busy_seconds) / seconds
    spare_cpus = (after.total_seconds - before.total_seconds) / seconds - usable_cpus
    return max(0.0, busy_cpus - max(0.0, spare_cpus))


def measure_stolen_share(before: CpuCounters, after: CpuCounters) -> float:
    """Tell which share of all CPU time between two readings the host gave to others, between 0 and 1."""
    return _divide(after.stolen_seconds - before.stolen_seconds, after.total_seconds - before.total_seconds)


def measure_throttled_share(before: CpuCounters, after: CpuCounters) -> float:
    """Tell in which share of the periods between two readings a quota was used up.

    Of several cgroups with a quota the one throttled most counts: the most in between, not since they were made, for
    an old pod's history would hide what happens to the young container in it.

    Args:
        before: The earlier reading.
        after: The later reading, of the same cgroups.

    Returns:
        A share between 0 and 1; 0 without a quota.
    """
    uses = [
        (late.throttled_periods - early.throttled_periods, late.periods - early.periods)
        for early, late in zip(before.quotas, after.quotas, strict=False)  # unequal only if we were moved in between
    ]
    throttled, periods = max(uses, default=(0, 0))
    return _divide(throttled, periods)


def _divide(part: float, whole: float) -> float:
    """Give a share between 0 and 1, also for counters that went back, as a hypervisor's may."""
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0


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


def describe_noise(quietness: Interference, usable_cpus: float) -> tuple[str, ...]:
    """Tell the user what disturbed the confirmation.

    Args:
        quietness: What was seen.
        usable_cpus: CPUs that may be kept busy here.

    Returns:
        A sentence for each disturbance beyond its limit, with the next step; empty when the machine was quiet.
    """
    return tuple(_list_disturbances(quietness, usable_cpus))


def _list_disturbances(quietness: Interference, usable_cpus: float) -> Iterator[str]:
    others = statistics.median(quietness.others_cpus) if quietness.others_cpus else 0.0
    if others > limit_others(usable_cpus):
        yield _describe_others(others, usable_cpus)
    if quietness.stolen_share > STOLEN_LIMIT:
        yield _describe_stolen(quietness.stolen_share)
    if quietness.throttled_share > THROTTLED_LIMIT:
        yield _describe_throttled(quietness.throttled_share)
    if quietness.drift > DRIFT_LIMIT:
        yield _describe_drift(quietness.drift)


def limit_others(usable_cpus: float) -> float:
    """Give the CPUs that others may keep busy on a machine that still counts as quiet."""
    return max(MIN_OTHERS_CPUS, OTHERS_SHARE * usable_cpus)


def _describe_others(others: float, usable_cpus: float) -> str:
    limit = limit_others(usable_cpus)
    return (
        f"Other processes kept {_write_cpus(others)} CPUs busy during the confirmation "
        f"(limit {_write_cpus(limit)} where {_write_cpus(usable_cpus)} are usable): "
        "stop them and tune again, or trust the interval only as far as that load stays."
    )


def _describe_stolen(share: float) -> str:
    return (
        f"The host gave {_write_percent(share)} of the CPU time to other virtual machines during the confirmation "
        f"(limit {format_percent(STOLEN_LIMIT)}): tune again at a quieter hour or on a machine with CPUs of its own, "
        "or trust the interval only as far as its neighbours stay as they were."
    )


def _describe_throttled(share: float) -> str:
    return (
        f"The CPU quota was used up in {_write_percent(share)} of its periods during the confirmation "
        f"(limit {format_percent(THROTTLED_LIMIT)}): this is expected where workers saturate the quota. "
        "If training will have a larger quota, or shares this one with other processes, tune again as it will run."
    )


def _describe_drift(drift: float) -> str:
    return (
        f"The machine became {_write_percent(drift)} slower or faster between rounds "
        f"(limit {format_percent(DRIFT_LIMIT)}): look for other load, heat or power saving and tune again. "
        "Speed-ups compare rates of the same round and suffer little; the throughput itself is less certain."
    )


def _write_cpus(cpus: float) -> str:
    """Write CPUs with at most two decimals, as in `0.7` or `2`."""
    return f"{cpus:.2f}".rstrip("0").rstrip(".")


def _write_percent(share: float) -> str:
    """Write a share with a decimal, for a whole percentage could equal the limit it is beyond."""
    return f"{share * 100:.1f} %"


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
        read: Read = read_cpu_times,
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

    def pause(self) -> None:
        """Measure what others do; to be called between rounds: whatever of ours still runs is ended first."""
        self._settle()
        others = measure_background_load(self._usable_cpus, read=self._read, sleep=self._sleep)
        if others is not None:
            self._others.append(others)

    def finish(self, rounds: Sequence[Sequence[float]]) -> Interference:
        """Sum up what was seen since `start`.

        Args:
            rounds: For each contestant its throughputs round by round, as `measure_drift` takes them.

        Returns:
            What disturbed the confirmation.
        """
        others, drift = tuple(self._others), measure_drift(rounds)
        before, after = self._before, self._read()
        if before is None or after is None:
            return Interference(others_cpus=others, drift=drift)
        return Interference(
            others_cpus=others,
            stolen_share=measure_stolen_share(before, after),
            throttled_share=measure_throttled_share(before, after),
            drift=drift,
        )
