"""Tunes the workers of a DataLoader while the training iterates over it."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from autotune.errors import DltuneError
from autotune.online.controller import Controller
from autotune.online.epoch import Epoch, EpochIterator, WorkerGroup, WorkerSettings, wait_for_ending_workers
from autotune.online.limits import WorkerLimits
from autotune.online.model import Window
from autotune.online.worker import WorkerCounters

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

WINDOW_SECONDS: Final = 1.5
MAX_WINDOW_SECONDS: Final = 6.0  # for few, slow batches
ROUNDS: Final = 3  # batches of each worker in a window
WATCH_SECONDS: Final = 30.0  # a window after it has converged
PAUSE_SECONDS: Final = 1.0  # between two batches, in which the training validates or saves, not steps
PAUSE_STEPS: Final = 10.0  # and this many times the mean step


class Autopilot:
    """The state of one tuned DataLoader over its epochs."""

    def __init__(
        self,
        loader: DataLoader[Any],
        limits: WorkerLimits,
        start: WorkerSettings | None,
        show: Callable[[str], object],
        save: Callable[[DataLoader[Any], Controller, float], object] | None = None,
    ) -> None:
        own = WorkerSettings(loader.num_workers, loader.prefetch_factor or 2)
        begin = start or WorkerSettings(max(1, own.workers), own.prefetch)
        self.controller = Controller(own, begin, limits.cpus, limits.most_workers)
        self._started, self._save, self._loader = time.perf_counter(), save, weakref.ref(loader)
        self._limits, self._show, self._counters = limits, show, WorkerCounters()
        self._epoch: Epoch | None = None
        self._kept: list[WorkerGroup] = []  # persistent workers between two epochs
        self._seeds: torch.Generator | None = None  # of persistent workers
        self._began: Window | None = None
        self._due, self._has_reported, self._is_changing = 0, False, False
        weakref.finalize(loader, _end_all, self._kept)

    def start_epoch(self, loader: DataLoader[Any]) -> EpochIterator:
        """Start an epoch with the settings that are best so far."""
        kept = self._kept.pop() if self._kept else None
        if kept is not None and kept.settings != self.controller.settings:
            kept.end()
            kept = None
        wait_for_ending_workers()
        (workers, prefetch), own = self.controller.settings, self.controller.own
        if kept is None:
            most = max(own.workers, self._limits.most_workers(prefetch, 0))
            self.controller.settings = WorkerSettings(min(workers, most), prefetch)
        epoch = Epoch(loader, self.controller.settings, own, self._counters, self._limits, kept, self._seeds)
        self._seeds = epoch.seeds if loader.persistent_workers else None
        self._epoch, self._is_changing = epoch, False
        self._restart_window(epoch)
        return EpochIterator(epoch, self._before_batch, self._after_epoch)

    def _restart_window(self, epoch: Epoch) -> None:
        """Begin a window when all batches have been delivered that are under way now."""
        self._began, self._due = None, epoch.drawn

    def _before_batch(self, epoch: Epoch) -> None:
        if epoch.failure and not self.controller.failure:
            self.controller.fail(epoch.failure)
            self._has_reported, self._is_changing = False, True
            self._report()
        if epoch.delivered < self._due or epoch is not self._epoch:
            return
        if self._is_changing:
            self._change(epoch)
        elif self.controller.failure:
            return
        elif self._began is None:
            self._began, self._due = self._read(epoch), epoch.delivered + 1
        elif self._is_pause(epoch):
            self._restart_window(epoch)
        else:
            self._look(epoch)

    def _is_pause(self, epoch: Epoch) -> bool:
        assert self._began is not None
        steps = max(1.0, epoch.delivered - self._began.batches)
        mean = (time.perf_counter() - self._began.seconds) / steps
        return time.perf_counter() - epoch.returned_at > max(PAUSE_SECONDS, PAUSE_STEPS * mean)

    def _look(self, epoch: Epoch) -> None:
        """Close the window if it is long enough, and change the workers if the controller asks for it."""
        assert self._began is not None
        self._due = epoch.delivered + max(self.controller.settings.workers, 4)  # whole rounds of workers
        seconds, batches = time.perf_counter() - self._began.seconds, epoch.delivered - self._began.batches
        least = WATCH_SECONDS if self.controller.has_converged else WINDOW_SECONDS
        is_long = seconds >= least and batches >= ROUNDS * max(1, self.controller.settings.workers)
        if not is_long and seconds < max(least, MAX_WINDOW_SECONDS):
            return
        window, before = self._read(epoch).since(self._began), self.controller.settings
        self._began, excess = None, self._limits.measure_workers()
        if excess and self.controller.settings != self.controller.own:
            epoch.fall_back(excess)
            return
        self._is_changing = self.controller.add(window) != before
        if self._is_changing:
            self._change(epoch)
        if self.controller.has_converged:
            self._report()

    def _change(self, epoch: Epoch) -> None:
        if (changed := epoch.change(self.controller.settings)) is not None:
            self.controller.settings, self._is_changing = changed, False
            self._restart_window(epoch)

    def _read(self, epoch: Epoch) -> Window:
        counts = self._counters.total(epoch.started_workers)
        return Window(epoch.delivered, time.perf_counter(), epoch.wait_seconds, time.process_time(), *counts)

    def _after_epoch(self, epoch: Epoch, is_whole: bool) -> None:
        if epoch.kept is not None:
            self._kept.append(epoch.kept)
        if epoch is self._epoch:
            self._epoch = None

    def _report(self) -> None:
        if not self._has_reported:
            self._has_reported = True
            self._show(self.describe())
            if self._save is not None and (loader := self._loader()) is not None:
                try:
                    self._save(loader, self.controller, time.perf_counter() - self._started)
                except DltuneError as error:  # training goes on
                    self._show(f"the result is not saved: {error}")

    def describe(self) -> str:
        """Describe in a sentence what it stays with, and why."""
        controller = self.controller
        (workers, _), (own, _) = controller.settings, controller.own
        if controller.failure:
            return f"added workers failed ({controller.failure}); training continues with num_workers={own}."
        now = controller.final_window
        if now is None:
            return f"has not converged; num_workers={workers} at the end."
        then = controller.windows.get(controller.own)
        rate = then.rate if then else controller.costs.predict(own, self._limits.cpus) if controller.costs else 0.0
        if controller.settings == controller.own:
            return f"num_workers={own} stays: {now.rate:.3g} batches/s, waits {now.wait_share:.0%} of the time."
        was = "was" if then else "about"
        waits = f" ({then.wait_share:.0%} before)" if then else ""
        return (
            f"num_workers={workers} instead of {own}: {now.rate:.3g} batches/s, {was} {rate:.3g} before; waits "
            f"{now.wait_share:.0%} of the time{waits}."
        )


def _end_all(groups: list[WorkerGroup]) -> None:
    while groups:
        groups.pop().end()


def print_sentence(text: str) -> None:
    """Print a sentence of the autopilot on stderr."""
    sys.stderr.write(f"dltune: {text}\n")
