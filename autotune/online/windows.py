"""Cuts a training run into windows, in which the workers are the same, and measures each."""

from __future__ import annotations

import operator
import sys
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

if TYPE_CHECKING:
    from autotune.online.controller import Controller
    from autotune.online.epoch import Epoch
    from autotune.online.worker import WorkerCounters

_NEVER: Final = sys.maxsize  # batches: neither a change nor a reading within this epoch
WINDOW_SECONDS: Final = 1.5
SHORT_WINDOW_SECONDS: Final = 0.5  # enough to see whether training waits without workers, or that a try is poor
POOR_RATIO: Final = 0.9  # of the best rate so far
MAX_WINDOW_SECONDS: Final = 6.0  # for few, slow batches
SHORT_EPOCH_SECONDS: Final = 3.0  # in which windows are whole epochs, if the workers are persistent; else:
SHORT_STARTED_EPOCH_SECONDS: Final = 6.0  # if workers start in each epoch: their start is a part of the rate
START_RATIO: Final = 4.0  # such an epoch is short, too, below so many times the wait for its first batch
ROUNDS: Final = 3  # batches of each worker in a window
WARM_UP_STEPS: Final = 3  # of an epoch, which may be slower
WATCH_SECONDS: Final = 30.0  # a window after it has converged
WATCH_STEPS: Final = 16  # between two readings of the counters then, which take some time
PAUSE_SECONDS: Final = 0.2  # between two batches, in which the training validates or saves, not steps
PAUSE_STEPS: Final = 5.0  # and this many times the mean of other steps
MIN_STEPS_BETWEEN: Final = 8  # two pauses; what comes more often is a long step
RECURRING_PAUSES: Final = 3  # in a window, from which on they are part of the steps of a GPU
MAX_PERIOD_SECONDS: Final = 12.0  # that a window waits for the next recurring pause


class Window(NamedTuple):
    """A part of a training run with unchanged workers."""

    batches: float = 0.0
    seconds: float = 0.0
    wait_seconds: float = 0.0  # of the training loop for batches
    main_cpu_seconds: float = 0.0  # of the training process
    worker_batches: float = 0.0
    worker_seconds: float = 0.0  # from receiving the indices to the end of `collate_fn`
    worker_cpu_seconds: float = 0.0

    def since(self, start: Window) -> Window:
        """Return the part after an earlier reading of the same counts."""
        return Window(*(now - then for now, then in zip(self, start, strict=True)))

    @property
    def rate(self) -> float:
        """Batches per second."""
        return self.batches / max(self.seconds, 1e-9)

    @property
    def step_seconds(self) -> float:
        """Seconds from the delivery of a batch to the request of the next one, in the mean."""
        return max(1e-9, self.seconds - self.wait_seconds) / max(self.batches, 1e-9)

    @property
    def wait_share(self) -> float:
        """Share of the time that the training loop waits for batches."""
        return min(1.0, self.wait_seconds / max(self.seconds, 1e-9))

    @property
    def busy_cpus(self) -> float:
        """CPUs that the training process and its workers keep busy."""
        return (self.main_cpu_seconds + self.worker_cpu_seconds) / max(self.seconds, 1e-9)


class Windows:
    """Measures one window after the other; each is a part of an epoch, or consists of whole epochs if they are short.

    The time between two epochs, the batches that new workers begin with, and pauses of the training do not count.

    Args:
        counters: Counters of the workers.
        controller: Its windows so far say how long the next one is.
        persists: Whether workers stay over epochs.
    """

    def __init__(self, counters: WorkerCounters, controller: Controller, *, persists: bool) -> None:
        self._counters, self._controller = counters, controller
        self._persists, self._short_seconds = persists, SHORT_EPOCH_SECONDS if persists else SHORT_STARTED_EPOCH_SECONDS
        self._total = self._offset = Window()  # counts at the end of the epoch before; what to subtract in this one
        self._start: Window | None = None  # counts at the start of the window
        self._due = self._warm_up = 0  # batches of the epoch: until a change or a reading, and before a window
        self.are_epochs = False  # whether windows consist of whole epochs
        self._is_resuming = False  # whether this epoch continues the window of the one before
        self._is_partial = False  # whether the window began within an epoch
        self.has_whole_epochs = False  # whether the last window of `begin_epoch` did not
        self._steps, self._step_seconds = 0, 0.0  # without pauses and the first steps of an epoch
        self._steps_since, self._noted = MIN_STEPS_BETWEEN, -1  # since a long step or a pause; the last batch
        self._is_pause, self._pauses = False, 0  # before this batch; in the window
        self._do_pauses_recur: bool | None = None  # None until three are in a window, False if they no longer do

    @property
    def needs_correction(self) -> bool:
        """Whether the final window lacks the start of the workers, which is a part of the rate."""
        controller = self._controller
        is_final = controller.has_converged and not (controller.is_corrected or controller.failure)
        return is_final and self.are_epochs and not self._persists

    def begin_epoch(self) -> Window | None:
        """End the time between two epochs; return the window of whole epochs that is long enough now, if there is one.

        What it takes to start workers in each epoch is a part of such a window.
        """
        self._offset = self._count().since(self._total)
        if not self.are_epochs:
            return None
        if self._start is None or (self._is_partial and self.needs_correction):
            self._start, self._is_partial = self._total, False
        window = self._total.since(self._start)
        if not self._is_long(window):
            return None
        self._start, self._pauses = self._total, 0
        self.has_whole_epochs, self._is_partial = not self._is_partial, False
        return window

    def discard(self) -> None:
        """Discard the window so far, in which the workers are not those of the next batches."""
        self._start = None

    def enter(self, epoch: Epoch, change_after: int | None = None) -> None:
        """Measure an epoch that has begun.

        Args:
            epoch: The epoch. Its workers are to change if its settings are not those of the controller.
            change_after: Batches before this change; None for those that its workers begin with.
        """
        settings, self._noted = self._controller.settings, -1
        self._warm_up = max(epoch.drawn or settings.batches, WARM_UP_STEPS)
        if epoch.settings != settings:
            self._start, self._due = None, self._warm_up if change_after is None else change_after
        else:
            self._due = _NEVER if self.are_epochs else self._warm_up
        self._is_resuming = not self.are_epochs and self._start is not None

    def follow(self, epoch: Epoch) -> None:
        """Measure an epoch from now on, which began before the training left another one."""
        self._offset = self._count(epoch.delivered, epoch.wait_seconds).since(self._total)
        self._is_resuming = epoch.settings == self._controller.settings and self._start is not None
        self._due, self.are_epochs = epoch.delivered + self._warm_up * self._is_resuming, False

    def restart(self, epoch: Epoch) -> None:
        """Begin a window with the next epoch if epochs are short, or when the batches under way are delivered."""
        self._start, self._due = None, _NEVER if self.are_epochs else epoch.drawn
        self._is_resuming = False

    def leave(self, epoch: Epoch) -> None:
        """Measure no further batches of an epoch; its length counts unless it was a look at a few batches.

        Loops that take `len(loader)` batches do not ask for the end: the epoch is left when the next one begins.
        """
        self._skip_pause(epoch)
        self._total = self._read(epoch)
        if epoch.is_whole or epoch.delivered > WARM_UP_STEPS:
            self.are_epochs = self._is_short(epoch)

    def finish(self, epoch: Epoch | None) -> Window | None:
        """Return the window in which the training has ended, in this epoch or after one; None if it is too short."""
        if epoch is not None:
            self.leave(epoch)
        if self._start is None or self._is_resuming:
            return None
        window = self._total.since(self._start)
        return window if window.seconds >= SHORT_WINDOW_SECONDS and self._has_rounds(window) else None

    def note_batch(self, epoch: Epoch) -> bool:
        """Note that the training asks for a batch; return whether the workers may change and `advance` is due.

        After a window has ended, a second call before the same batch says whether the next one may begin.
        """
        if self._due == _NEVER and not self._is_short(epoch):  # though the one before was, or was left early
            self.are_epochs = False
            self.restart(epoch)
        self._note_pause(epoch)
        return epoch.delivered >= self._due

    def advance(self, epoch: Epoch) -> Window | None:
        """Return the window that ends before this batch; if none does, begin one, or continue it."""
        if self._start is None:
            self._start, self._due, self._pauses = self._read(epoch), epoch.delivered + 1, int(self._is_pause)
            self._is_partial = True
            return None
        if self._is_resuming:  # without the start of this epoch
            self._skip(self._read(epoch).since(self._total))
            self._is_resuming, self._due = False, epoch.delivered + 1
            return None
        window, controller = self._read(epoch).since(self._start), self._controller
        if not self._is_long(window):  # for whole rounds of the workers
            steps = max(controller.settings.workers, WATCH_STEPS if controller.has_converged else 1)
            self._due = epoch.delivered + (1 if self._do_pauses_recur else steps)
            return None
        if self._do_pauses_recur and not self._is_pause:
            most = MAX_PERIOD_SECONDS + (WATCH_SECONDS if controller.has_converged else 0.0)
            self._do_pauses_recur, self._due = window.seconds < most, epoch.delivered + 1
            if self._do_pauses_recur:
                return None
        self._start, self._due = None, epoch.delivered
        return window

    def _count(self, batches: int = 0, wait_seconds: float = 0.0) -> Window:
        return Window(batches, time.perf_counter(), wait_seconds, time.process_time(), *self._counters.total())

    def _read(self, epoch: Epoch) -> Window:
        return self._count(epoch.delivered, epoch.wait_seconds).since(self._offset)

    def _skip(self, part: Window) -> None:
        self._offset = Window(*map(operator.add, self._offset, part))

    def _skip_pause(self, epoch: Epoch) -> None:
        """Leave out the time since the last batch, but for a step of the usual length."""
        seconds, cpu_seconds = time.perf_counter() - epoch.returned_at, time.process_time() - epoch.returned_cpu_seconds
        skipped = max(0.0, seconds - (self._step_seconds / self._steps if self._steps else PAUSE_SECONDS))
        self._skip(Window(0, skipped, 0, cpu_seconds * skipped / max(1e-9, seconds)))

    def _is_short(self, epoch: Epoch) -> bool:
        """Return whether the epoch so far is short, or has few batches after those that its workers began with."""
        start = 0.0 if self._persists else START_RATIO * epoch.first_wait_seconds
        is_short = epoch.returned_at - epoch.first_at < max(self._short_seconds, start)
        return is_short or epoch.delivered < 2 * self._warm_up

    def _note_pause(self, epoch: Epoch) -> None:
        """Leave a pause out of the window, unless it is that of a GPU: then a window consists of whole periods.

        A GPU is given many steps ahead, until one step waits for all of them. Windows with these pauses do not compare
        with those without, so that the search begins again.
        """
        if epoch.delivered == self._noted:
            return
        seconds, self._noted = time.perf_counter() - epoch.returned_at, epoch.delivered
        is_long = seconds >= PAUSE_SECONDS and seconds * self._steps > PAUSE_STEPS * self._step_seconds
        is_first = epoch.delivered <= WARM_UP_STEPS
        self._is_pause = is_long and self._steps_since >= MIN_STEPS_BETWEEN and not is_first
        self._steps_since = 0 if is_long else self._steps_since + 1
        if not (self._is_pause or is_first):
            self._steps += 1
            self._step_seconds += seconds
        if not self._is_pause or self._start is None:
            return
        self._pauses += 1
        may_recur = self._do_pauses_recur is None and not self._controller.has_converged
        if self._pauses == RECURRING_PAUSES and may_recur and torch.cuda.is_initialized():
            self._do_pauses_recur = True
            self._controller.begin_again()
            self._start, self._due = None, _NEVER if self.are_epochs else epoch.delivered
        elif not self._do_pauses_recur:
            self._skip_pause(epoch)
        elif self._pauses == 1:
            self._start, self._is_partial = self._read(epoch), True

    def _is_long(self, window: Window) -> bool:
        controller = self._controller
        best = max((one.rate for one in controller.windows.values()), default=0.0)
        is_clear = window.rate < POOR_RATIO * best if best else not controller.settings.workers
        least = SHORT_WINDOW_SECONDS if is_clear else WINDOW_SECONDS
        if controller.has_converged:
            least = WINDOW_SECONDS if self.needs_correction else WATCH_SECONDS
        return window.seconds >= (least if self._has_rounds(window) else max(least, MAX_WINDOW_SECONDS))

    def _has_rounds(self, window: Window) -> bool:
        return window.batches >= ROUNDS * max(1, self._controller.settings.workers)
