"""Decides by windows of a training run how many workers load its batches, and predicts other numbers of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from autotune.online.group import WorkerSettings
from autotune.online.windows import Window

MAX_TRIES: Final = 6
KNEE_SHARE: Final = 0.95  # of the upper bound, which the first proposal is to reach
TIE_RATIO: Final = 0.98  # of the best rate, above which fewer workers are as good
OWN_RATIO: Final = 0.96  # of the best rate, above which the user's settings stay; two windows differ by that much
WORTHWHILE_GAIN: Final = 1.05  # predicted, to load in the training process
MIN_GROWTH: Final = 1.2  # of the user's workers
MAX_GAP: Final = 3.0  # times as many workers; above it, some in between are tried
MIN_WAIT_SHARE: Final = 0.05  # below it, more workers cannot help
BUSY_CPU_SHARE: Final = 0.96  # of the CPUs, above which more workers cannot help
PREFETCH_CPU_SHARE: Final = 0.75  # of the CPUs, above which batches ahead cannot help
IDLE_SHARE: Final = 0.3  # of the time of the workers, below which more cannot help
BLOCKED_SHARE: Final = 0.75  # of the time of the workers, below which the order of the batches delays them
MAX_PREFETCH: Final = 4
IN_MEMORY_SECONDS: Final = 1e-3  # of a batch, below which it may be loaded without workers though the user has some
FEWER_RATIO: Final = 0.93  # of the best, which fewer workers are predicted to keep
DRIFT_RATIO: Final = 0.9  # of the time for steps, or of the rate, when it converged
DRIFT_WAIT: Final = 0.05  # more of the time waiting than when it converged
MAX_DRIFTS: Final = 3


@dataclass(frozen=True, slots=True)
class BatchCosts:
    """Seconds of one batch, by what it needs."""

    waiting: float  # in a worker, for a disk or a network
    worker_cpu: float
    main_cpu: float
    step: float  # between the delivery of a batch and the request of the next one

    @classmethod
    def measure(cls, window: Window) -> BatchCosts | None:
        """Return the costs in a window; None without batches of workers."""
        if not window.worker_batches:
            return None
        main_cpu = window.main_cpu_seconds / max(window.batches, 1e-9)
        cpu = min(window.worker_cpu_seconds, window.worker_seconds) / window.worker_batches
        return cls(window.worker_seconds / window.worker_batches - cpu, cpu, main_cpu, window.step_seconds)

    def predict(self, workers: int, cpus: float) -> float:
        """Predict batches per second; workers wait independently and share the CPUs with the training process.

        Mean value analysis of a closed queueing network (Reiser and Lavenberg, 1980), in which the CPUs are one fast
        server with a delay (Seidmann's approximation). Without workers, a batch is loaded between two steps.
        """
        if not workers:
            return 1.0 / (self.step + self.waiting + self.worker_cpu)
        cpu, rate, queue = self.worker_cpu + self.main_cpu, 0.0, 0.0
        for number in range(1, workers + 1):
            response = cpu / cpus * (1 + queue)
            rate = number / (self.waiting + cpu * (cpus - 1) / cpus + response)
            queue = rate * response
        return min(rate, 1.0 / self.step)

    def propose(self, cpus: float, most: int) -> int:
        """Return the fewest workers, up to `most`, that come near the upper bound of the step and the CPUs."""
        bound = min(1.0 / self.step, cpus / max(self.worker_cpu + self.main_cpu, 1e-9))
        return next((one for one in range(1, most) if self.predict(one, cpus) >= KNEE_SHARE * bound), most)


class Controller:
    """Tries a few numbers of workers, keeps the fewest that are as fast as the best, and notices when that changes.

    Args:
        own: The user's settings.
        start: Settings of the first window.
        cpus: CPUs of this training process.
        limit: Returns the most workers for a prefetch factor within the limits of memory, /dev/shm and open files, if
            as many as the second argument run already and stay.
        known: A window of `start` in an earlier run; about as fast, and waiting as little, it tries no others, unless
            the user has no workers and these are predicted to be slower.
        needs_workers: Whether the user's workers load what the training process should not.
        is_distributed: Returns whether other processes take the same steps, and each waits for the slowest of them.
    """

    def __init__(
        self,
        own: WorkerSettings,
        start: WorkerSettings,
        cpus: float,
        limit: Callable[[int, int], int],
        known: Window | None = None,
        *,
        needs_workers: bool = False,
        is_distributed: Callable[[], bool] = lambda: False,
    ) -> None:
        self.own, self.settings, self.cpus, self._limit = own, start, cpus, limit
        self.known, self._needs_workers, self._is_distributed = known, needs_workers, is_distributed
        self.windows: dict[WorkerSettings, Window] = {}
        self.costs: BatchCosts | None = None
        self.has_converged = False
        self.is_corrected = False  # whether the final window has whole epochs
        self.failure = ""
        self.watched: Window | None = None  # the last one since it has converged
        self._low_windows, self.drifts = 0, 0

    @property
    def final_window(self) -> Window | None:
        """The window of the settings that it stays with; None while it tries others."""
        return self.windows.get(self.settings) if self.has_converged else None

    @property
    def own_window(self) -> Window | None:
        """The window of the user's settings; predicted if they were not measured, None if that is not possible."""
        if self.own in self.windows or self.costs is None:
            return self.windows.get(self.own)
        costs, last = self.costs, next(reversed(self.windows.values()), None)
        if last is not None and last.busy_cpus > PREFETCH_CPU_SHARE * self.cpus:
            costs = replace(costs, waiting=0.0)  # for CPUs, not for a disk or a network
        best = max(map(self.rate, self.windows.values()), default=math.inf)  # faster, as an earlier run found
        rate = min(best, costs.predict(self.own.workers, self.cpus))
        return Window(batches=rate, seconds=1.0, wait_seconds=1.0 - rate * costs.step)

    def fail(self, reason: str) -> None:
        """Return to the user's settings, and try no others: added workers failed."""
        self.settings, self.failure, self.has_converged = self.own, reason, True

    def add(self, window: Window) -> None:
        """Take a window with the current settings into account, and choose those of the next one."""
        if self.failure:
            self.windows[self.own] = window
            return
        if (before := self.final_window) is not None:
            self._watch(window, before)
            return
        is_first, current = not any(one.workers for one in self.windows), self.settings
        self.windows[current] = window
        self.costs = BatchCosts.measure(window) or self.costs
        if self.costs is not None and self._is_distributed():
            self.costs = replace(self.costs, step=self._find_step())
        if (known := self.known) is not None and window.rate > DRIFT_RATIO * known.rate:
            if not self.own.workers and self._predict_none(window.rate):
                self.settings, self.known = self.own, None  # the data is cheaper now
                return
            self.has_converged = window.wait_share < known.wait_share + DRIFT_WAIT  # else the step is faster now
        if self.has_converged:
            return
        self.known = None
        chosen = self._choose()
        basis = current if is_first else chosen
        new = [] if len(self.windows) >= MAX_TRIES else self._propose(basis, is_first=is_first)
        new = [one for one in new if one not in self.windows]
        self.has_converged = not new
        self.settings = new[0] if new else chosen

    def begin_again(self) -> None:
        """Search again from the user's settings: the next windows do not compare with those so far."""
        self.windows, self.settings, self.known = {}, self.own, None

    def limit(self, settings: WorkerSettings) -> None:
        """Load with fewer workers, as the limits ask for, and search again among those."""
        self.settings, self.known, self.watched = settings, None, None
        self.has_converged = self.is_corrected = False
        allowed = [one for one in self.windows if one.workers <= settings.workers and one.prefetch <= settings.prefetch]
        self.windows = {one: found for one, found in self.windows.items() if one in (self.own, *allowed)}

    def finish(self) -> None:
        """Stay with the best settings so far; the first window, and that of one worker, prove nothing."""
        if len(self.windows) > (1 if self.own.workers else 2):
            self.settings, self.has_converged = self._choose(), True

    def correct(self, window: Window) -> None:
        """Replace the window in which it converged by one of whole epochs, which has the starts of workers, too."""
        self.windows[self.settings], self.is_corrected = window, True
        own = None if self.own.workers else self.windows.get(self.own)  # that of the user's workers has no starts
        if own is not None and OWN_RATIO * self.rate(own) > self.rate(window):
            self.settings = self.own
        self.watched, self._low_windows = None, 0

    def _find_step(self) -> float:
        """Return the shortest mean step of all windows: longer ones include waits for other processes.

        Without workers, a GPU is idle at the end of each step; with them, steps wait for it.
        """
        have_workers = [one for one in self.windows.values() if one.worker_batches]
        return min(one.step_seconds for one in have_workers or self.windows.values())

    def rate(self, window: Window) -> float:
        """Return the batches per second if no other process delayed the steps."""
        if not self._is_distributed():
            return window.rate
        alone = 1.0 / (self._find_step() + window.wait_seconds / max(window.batches, 1e-9))
        return max(window.rate, alone)  # loading here may overlap with steps of a GPU

    def _choose(self) -> WorkerSettings:
        """Return the user's settings, or else the fewest workers, that are about as fast as the best."""
        fastest, full = max(one.rate for one in self.windows.values()), BUSY_CPU_SHARE * self.cpus
        rates = {  # without slower ones with busy CPUs, which have too many workers, though their steps may hide it
            one: self.rate(found)
            for one, found in self.windows.items()
            if found.rate >= DRIFT_RATIO * fastest or found.busy_cpus < full
        }
        best = max(rates.values())
        if rates.get(self.own, 0.0) >= OWN_RATIO * best:
            return self.own
        good = [one for one, rate in rates.items() if rate >= TIE_RATIO * best]
        return min(good, key=lambda one: (one.workers, one.prefetch))

    def _propose(self, basis: WorkerSettings, *, is_first: bool) -> list[WorkerSettings]:
        """List settings to try after these, the most likely first."""
        costs, (workers, prefetch), cpus = self.costs, basis, self.cpus
        window, tries = self.windows[basis], list[WorkerSettings]()
        less = max((one.workers for one in self.windows if one.workers < workers), default=0)
        more = min((one.workers for one in self.windows if one.workers > max(1, workers)), default=0)
        if not workers:  # one worker shows what a worker costs
            one = WorkerSettings(min(1, self._limit(prefetch, 0)), prefetch)
            return [one, *_list_between(1, more, prefetch)] if window.wait_share > MIN_WAIT_SHARE else []
        if costs is None:
            return []
        most = self._limit(prefetch, self.settings.workers)
        busy = window.worker_seconds / max(1e-9, workers * window.seconds)  # share of the workers' time
        can_wait_less = window.wait_share > MIN_WAIT_SHARE and busy > IDLE_SHARE
        if can_wait_less and window.busy_cpus < BUSY_CPU_SHARE * cpus:
            proposed = costs.propose(cpus, most)
            if is_first and (basis != self.own or proposed > MIN_GROWTH * workers):
                tries.append(WorkerSettings(proposed, prefetch))
            are_blocked = busy < BLOCKED_SHARE and window.busy_cpus < PREFETCH_CPU_SHARE * cpus
            if are_blocked and prefetch < MAX_PREFETCH and workers <= self._limit(2 * prefetch, 0):
                tries.append(WorkerSettings(workers, 2 * prefetch))
            elif most > workers == max(one.workers for one in self.windows):
                tries.append(WorkerSettings(min(most, math.ceil(1.3 * workers)), prefetch))
            tries += _list_between(workers, more, prefetch)
        elif window.wait_share > MIN_WAIT_SHARE and busy <= IDLE_SHARE and basis != self.own:  # many start slowly
            tries += _list_between(less, workers, prefetch)
        are_crowded = window.busy_cpus > BUSY_CPU_SHARE * cpus and workers > cpus  # then the model cannot tell
        fewer = math.floor(workers / (1.5 if are_crowded else 1.25))
        are_enough = basis != self.own and costs.predict(fewer, cpus) > FEWER_RATIO * costs.predict(workers, cpus)
        if fewer > less and (are_crowded or are_enough):
            tries.append(WorkerSettings(fewer, prefetch))
        if not self._needs_workers and self._predict_none(max(map(self.rate, self.windows.values()))):
            tries.append(WorkerSettings(0, self.own.prefetch))
        return tries

    @property
    def untried_rate(self) -> float:
        """Batches per second that are predicted without workers, if that is faster and cannot be tried; else 0."""
        now = self.final_window
        return self._predict_none(self.rate(now)) if self._needs_workers and now is not None else 0.0

    def _predict_none(self, rate: float) -> float:
        """Predict batches per second without workers; 0 if that is not faster, or the user's workers do much."""
        costs = self.costs
        if costs is None or (self.own.workers and costs.waiting + costs.worker_cpu >= IN_MEMORY_SECONDS):
            return 0.0
        found = costs.predict(0, self.cpus)
        return found if found > WORTHWHILE_GAIN * rate else 0.0

    def _watch(self, window: Window, before: Window) -> None:
        """Compare a window with the one in which it converged; start again after two that are slower and wait more."""
        is_low = (
            1.0 - window.wait_share < DRIFT_RATIO * (1.0 - before.wait_share)
            and window.wait_share > before.wait_share + DRIFT_WAIT
        )
        self._low_windows, self.watched = self._low_windows + 1 if is_low else 0, window
        if self._low_windows == 2 and self.drifts < MAX_DRIFTS:
            self.windows, self.has_converged, self.is_corrected, self.watched = {}, False, False, None
            self._low_windows, self.drifts = 0, self.drifts + 1
            self.add(window)


def _list_between(few: int, many: int, prefetch: int) -> list[WorkerSettings]:
    """List the geometric mean of two numbers of workers, if they are far apart."""
    few = max(1, few)
    return [WorkerSettings(math.isqrt(few * many), prefetch)] if many > MAX_GAP * few else []
