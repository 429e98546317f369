"""Tunes the workers of a DataLoader while the training iterates over it."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from autotune.errors import UsageError
from autotune.online.controller import MIN_WAIT_SHARE, Controller
from autotune.online.dataset_objects import loads_by_torch
from autotune.online.epoch import Epoch, EpochIterator
from autotune.online.group import WorkerGroup, WorkerSettings, find_start_method, wait_for_ending_workers
from autotune.online.limits import WorkerLimits
from autotune.online.result import find_start, read_facts, read_settings, remove_result, save_result
from autotune.online.shared_state import WATCHED_LOADS, is_distributed
from autotune.online.windows import Window, Windows
from autotune.online.worker import WorkerCounters
from autotune.system.software import read_local_rank, read_local_world_size
from autotune.units import format_rate, parse_budget

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from autotune.profiles.schema import TunedProfile

Stats = dict[str, float]  # by name


class StatsCallback:
    """Calls the user's `on_stats` until it fails: an error of a logger must not end the training.

    Args:
        on_stats: The user's function, or None.

    Raises:
        UsageError: It cannot be called.
    """

    def __init__(self, on_stats: Callable[[Stats], object] | None) -> None:
        if not (on_stats is None or callable(on_stats)):
            raise UsageError(f"on_stats={on_stats!r} is not a function of the stats.")
        self._on_stats: Callable[[Stats], object] | None = on_stats

    def __call__(self, stats: Stats) -> None:
        """Pass the stats on."""
        if self._on_stats is not None:
            try:
                self._on_stats(stats)
            except Exception as error:
                self._on_stats = None
                print_sentence(f"on_stats failed, and is not called again: {type(error).__name__}: {error}")

    def __deepcopy__(self, _: object) -> StatsCallback:
        """Return this callback: a copied loader reports to the same function."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only a function of a module: a loader can be pickled, though a lambda or a logger cannot."""
        is_importable = isinstance(self._on_stats, FunctionType) and "<" not in self._on_stats.__qualname__
        return StatsCallback, (self._on_stats if is_importable else None,)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `autopilot`, and where a loader was made, such as `train.py:31`."""

    profile: str | Path | None = "dltune.json"
    max_workers: int | None = None
    max_memory: str = "80%"
    on_stats: Callable[[Stats], object] | None = None
    quiet: bool = False
    place: str = ""

    def __post_init__(self) -> None:
        """Check the options before the training begins, which may change the current folder."""
        if self.profile is not None:
            object.__setattr__(self, "profile", str(Path(self.profile).absolute()))
        if type(self.max_memory) is not str:
            raise UsageError(f"max_memory={self.max_memory!r} must be a text, such as '8GiB' or '80%'.")
        try:
            parse_budget(self.max_memory, 1)
        except ValueError as error:
            raise UsageError(f"max_memory: {error}.") from None
        if self.max_workers is not None and not (type(self.max_workers) is int and self.max_workers > 0):
            raise UsageError(f"max_workers={self.max_workers!r} must be a whole number of at least 1.")
        if self.on_stats is not None and not isinstance(self.on_stats, StatsCallback):
            object.__setattr__(self, "on_stats", StatsCallback(self.on_stats))

    def show(self, sentence: str) -> None:
        """Print a sentence in the first process of this host, unless the user wants none."""
        if not self.quiet and read_local_rank() == 0:
            print_sentence(f"{self.place}: {sentence}" if self.place else sentence)


class Autopilot:
    """The state of one tuned DataLoader over its epochs.

    Args:
        loader: The user's loader.
        options: The user's options.
    """

    def __init__(self, loader: DataLoader[Any], options: Options) -> None:
        self.options, self._processes, self.process = options, read_local_world_size(), os.getpid()
        self._limits = limits = WorkerLimits(
            options.max_memory, options.max_workers, self._processes, find_start_method(loader)
        )
        own = read_settings(loader)
        self.facts = read_facts(loader, self._processes)
        self._path = None if options.profile is None or self.facts.is_evaluation else Path(options.profile)
        is_in_thread = threading.current_thread() is not threading.main_thread()  # whose random states it would change
        self._is_unprepared = is_in_thread or loader.worker_init_fn is not None  # to load batches itself
        needs_workers = own.workers > 0 and (self._is_unprepared or not loads_by_torch(loader))
        earlier = None
        if self._path is not None:
            earlier = find_start(self._path, self.facts, own, limits.most_workers(own.prefetch, 0))
        if needs_workers and earlier is not None and not earlier.settings.workers:
            earlier = None
        begin = own if earlier is None else earlier.settings
        known = earlier.window if earlier is not None and earlier.is_complete else None
        self.unfinished = earlier.window if earlier is not None and not earlier.is_complete else None
        self.controller = Controller(
            own,
            begin,
            limits.cpus,
            self._limit_workers,
            known,
            needs_workers=needs_workers,
            is_distributed=is_distributed,
        )
        self._started = time.perf_counter()
        self._counters = WorkerCounters()
        self._windows = Windows(self._counters, self.controller, persists=loader.persistent_workers)
        self._epoch: Epoch | None = None  # whose batches count
        self._iterators: weakref.WeakSet[EpochIterator] = weakref.WeakSet()  # that the training holds
        self._latest: weakref.ref[Epoch] | None = None  # that was started
        self._kept: list[WorkerGroup] = []  # persistent workers between two epochs
        self._seeds: torch.Generator | None = None  # of persistent workers
        if (iterator := vars(loader).pop("_iterator", None)) is not None:  # of torch, with workers of an earlier epoch
            self._seeds = torch.Generator().manual_seed(iterator._base_seed)
            iterator._shutdown_workers()
        self._drift = ""  # what to say of it when it has converged again
        self._longest = 0  # batches of an epoch
        self._saved: TunedProfile | None = None  # its last result
        self._is_remade = False  # whether the training makes an equal loader for each epoch
        self._has_checked = False  # what workers would share with this process
        self._has_reported = False
        self._follow(loader)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as None: a copied loader is tuned from its start."""
        return type(None), ()

    def _follow(self, loader: DataLoader[Any]) -> None:
        self._loader = weakref.ref(loader)
        weakref.finalize(loader, _end_all, self._kept)

    def end_workers(self) -> None:
        """End persistent workers after an epoch, as `_shutdown_workers` of torch's iterator does."""
        self._end_epochs()
        _end_all(self._kept)
        self._seeds = None
        wait_for_ending_workers()

    _shutdown_workers = end_workers

    def continue_with(self, loader: DataLoader[Any]) -> bool:
        """Tune a loader that takes the place of an equal one, which no longer exists; return whether it is one."""
        wait_for_ending_workers()  # they hold the loader before
        is_equal = read_facts(loader, self._processes) == self.facts and read_settings(loader) == self.controller.own
        if self._loader() is not None or not is_equal:
            return False
        self._follow(loader)
        self._seeds, self._is_remade = None, True
        return True

    @property
    def left_nothing(self) -> bool:
        """Whether its loader no longer exists, and had too few batches for a window."""
        return self._loader() is None and not self.controller.windows

    def start_epoch(self, loader: DataLoader[Any]) -> EpochIterator:
        """Start an epoch with the settings that are best so far."""
        self._end_epochs(are_replaced=loader.persistent_workers)
        began = time.perf_counter()
        if self._epoch is not None:  # a look at a batch
            settings, own, running = self.controller.settings, self.controller.own, self._epoch.settings.workers
            if settings.workers > self._limits.most_workers(settings.prefetch, running) - running:
                settings = own
            return self._iterate(Epoch(loader, settings, own, self._counters, self._limits))
        if (window := self._windows.begin_epoch()) is not None:
            self._evaluate(window, has_whole_epochs=self._windows.has_whole_epochs)
        (workers, prefetch), own, kept = self.controller.settings, self.controller.own, list(self._kept)
        self._kept.clear()
        wait_for_ending_workers()
        if not kept:
            most = max(own.workers, self._limits.most_workers(prefetch, 0))
            if workers > most:
                self._limit(WorkerSettings(most, prefetch) if most else own)
            if workers > most or (loader.persistent_workers and workers):
                self._windows.discard()  # only their first epoch starts them
        is_unchecked = not (own.workers or kept or self._has_checked) and self.controller.settings.workers > 0
        settings = own if is_unchecked else self.controller.settings  # the first batches show what workers would share
        self._epoch = epoch = Epoch(loader, settings, own, self._counters, self._limits, kept, self._seeds)
        self._seeds = epoch.seeds if loader.persistent_workers else None
        epoch.note_return(began)
        self._windows.enter(epoch, WATCHED_LOADS if is_unchecked else None)
        return self._iterate(epoch)

    def _iterate(self, epoch: Epoch) -> EpochIterator:
        self._latest = weakref.ref(epoch)
        iterator = next(iter(self._iterators), None) if epoch.loader.persistent_workers else None
        if iterator is None:
            iterator = EpochIterator(epoch, self._before_batch, self._after_epoch)
            self._iterators.add(iterator)
        else:
            iterator.begin(epoch)
        return iterator

    def _end_epochs(self, *, are_replaced: bool = False) -> None:
        """End epochs whose batches are all delivered; with persistent workers, also those that another one replaces."""
        for iterator in list(self._iterators):
            if are_replaced:
                iterator.end()
            elif not iterator.is_needed:  # else the training goes on with it
                iterator.leave()

    def _limit_workers(self, prefetch: int, kept: int) -> int:
        """Return the most workers within the limits; in short epochs, further ones than batches would get none."""
        most = self._limits.most_workers(prefetch, kept)
        return min(most, self._longest or most)

    def _limit(self, settings: WorkerSettings) -> None:
        self.controller.limit(settings)
        self._has_reported, self.unfinished = False, None

    def _before_batch(self, epoch: Epoch) -> None:
        if epoch.failure and not self.controller.failure:
            self._fail(epoch.failure)
        if self._epoch is None and self._latest is not None and self._latest() is epoch:
            self._epoch = epoch
            self._windows.follow(epoch)
        while epoch is self._epoch and self._windows.note_batch(epoch):
            if epoch.settings != self.controller.settings:
                if epoch.change(self.controller.settings):
                    self._has_checked = True
                    if epoch.settings != self.controller.settings and not epoch.failure:
                        self._limit(epoch.settings)
                    self._windows.restart(epoch)
                break
            if (window := self._windows.advance(epoch)) is None:
                break
            self._evaluate(window)

    def _evaluate(self, window: Window, *, has_whole_epochs: bool = False) -> None:
        """Let the controller decide by a window; it may ask for a change."""
        controller = self.controller
        before, last, drifts = controller.settings, controller.final_window, controller.drifts
        if (excess := self._limits.measure_workers()) and before != controller.own:
            self._fail(f"added workers failed ({excess})")
            if self._epoch is not None:
                self._epoch.fall_back(excess)
            else:
                _end_all(self._kept)
            return
        if has_whole_epochs and self._windows.needs_correction:
            controller.correct(window)
            self._has_reported &= controller.settings == before
            self._save_result()
        else:
            controller.add(window)
            is_final = has_whole_epochs and last is None and controller.settings == before
            controller.is_corrected |= is_final and controller.has_converged
        if last is not None and controller.drifts > drifts:
            self._drift = f"waits grew from {last.wait_share:.0%} to {window.wait_share:.0%} of the time; "
            self._has_reported = False
        if self.options.on_stats is not None:
            rates = {"data/batches_per_second": window.rate, "data/wait_share": window.wait_share}
            self.options.on_stats(rates | {"data/num_workers": before.workers})
        if controller.has_converged:
            self._report()

    def _fail(self, reason: str) -> None:
        self.controller.fail(reason)
        self._has_reported = False
        self._report()
        if self._path is not None:
            with suppress(Exception):  # training goes on
                remove_result(self._path, self.facts)
        if self._epoch is None:
            self._windows.discard()
        else:
            self._windows.restart(self._epoch)

    def _after_epoch(self, epoch: Epoch) -> None:
        self._kept.extend(epoch.kept)
        if epoch.is_whole:
            self._longest = max(self._longest, epoch.drawn)
        if epoch is self._epoch:
            self._epoch = None
            self._windows.leave(epoch)

    def _report(self) -> None:
        if not self._has_reported:
            self._has_reported = True
            sentence, self._drift = self._drift + self.describe(), ""
            self.options.show(sentence)
            self._save_result()

    def _save_result(self, *, is_complete: bool = True) -> None:
        controller, path = self.controller, self._path
        if path is not None and controller.known is None and not controller.failure:
            seconds = time.perf_counter() - self._started
            try:
                most = self._limits.most_workers(controller.settings.prefetch, controller.settings.workers)
                self._saved = save_result(
                    path, self.facts, controller, seconds, is_complete=is_complete, most=most, before=self._saved
                )
            except Exception as error:  # training goes on, also with a loader that no profile can describe
                self.options.show(f"the result is not saved: {error}")

    def finish(self) -> None:
        """At the end of the training, keep the best settings so far as the result."""
        controller = self.controller
        if not controller.has_converged:
            window = self._windows.finish(self._epoch)
            if window is not None and controller.known is None:
                controller.add(window)
            is_complete = controller.has_converged
            controller.finish()
            self._save_result(is_complete=is_complete)
        elif controller.watched is not None and self._windows.are_epochs and not controller.failure:
            controller.correct(controller.watched)
            self._save_result()

    @property
    def untried_rate(self) -> float:
        """Batches per second that are predicted without workers, if the user may try what the autopilot does not."""
        return 0.0 if self._is_unprepared else self.controller.untried_rate

    @property
    def start_share(self) -> float:
        """Share of each epoch that starting its workers takes, by the model; 0 if they stay, or cannot stay."""
        controller, workers = self.controller, self.controller.settings.workers
        now, costs = controller.final_window, controller.costs
        persists = self.facts.persistent_workers or self._is_remade or not self._windows.are_epochs
        if persists or now is None or costs is None or not workers:
            return 0.0
        return 1.0 - controller.rate(now) / costs.predict(workers, controller.cpus)

    def describe(self) -> str:
        """Describe in a sentence what it stays with, and why."""
        controller = self.controller
        (workers, prefetch), (own, own_prefetch) = controller.settings, controller.own
        if controller.failure:
            return f"num_workers={own} stays: {controller.failure}."
        now = controller.final_window
        if now is None:
            return f"has not converged; num_workers={workers} at the end."
        waits = f"{now.wait_share:.0%}"
        if controller.settings == controller.own:
            rates = f"{format_rate(now.rate)} batches/s{self._list_others()}"
            is_limited = not own and len(controller.windows) == 1 and now.wait_share > MIN_WAIT_SHARE
            reason = self._limits.explain_memory(own_prefetch) if is_limited else ""
            return f"num_workers={own} stays: {rates}, waits {waits} of the time{reason and f'; {reason}'}."
        changes = [f"num_workers={workers} (was {own})"] if workers != own else []
        changes += [f"prefetch_factor={prefetch} (was {own_prefetch})"] if workers and prefetch != own_prefetch else []
        text = f"{' and '.join(changes)}: {format_rate(now.rate)} batches/s"
        if controller.known is not None:
            return f"{text}, as an earlier run has found; waits {waits} of the time."
        then = controller.own_window or now
        if controller.own not in controller.windows:
            return f"{text}, before {format_rate(then.rate)} (predicted); waits {waits} of the time."
        return f"{text}, before {format_rate(then.rate)}; waits {waits} of the time, before {then.wait_share:.0%}."

    def _list_others(self) -> str:
        """Return the rates with other settings, in brackets; empty if there were none."""
        own, rates = self.controller.own, list[str]()
        for one, found in self.controller.windows.items():
            prefetch = "" if one.prefetch == own.prefetch else f" and prefetch_factor={one.prefetch}"
            rates += [f"{format_rate(found.rate)} with {one.workers}{prefetch}"] if one != own else []
        return f" ({', '.join(rates)})" if rates else ""


def _end_all(groups: list[WorkerGroup]) -> None:
    while groups:
        groups.pop().end()


def print_sentence(text: str) -> None:
    """Print a sentence of the autopilot on stderr."""
    with suppress(Exception):  # a closed stderr, or one of the user's, must not end the training
        is_terminal = getattr(sys.stderr, "isatty", bool)()
        clear = "\r\x1b[K" if is_terminal else ""  # the line may have a progress bar
        sys.stderr.write(f"{clear}dltune: {text}\n")
