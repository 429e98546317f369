"""`autotune.watch`: measures how long a training loop waits for any iterable of batches, and changes nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from autotune.online.autopilot import Stats, StatsCallback, print_sentence
from autotune.profiles.load import TunedLoader, load
from autotune.system.software import read_local_rank
from autotune.units import format_rate

STATS_SECONDS: Final = 10.0
MIN_SLOW_SECONDS: Final = 30.0  # of windows in a row, before a sentence is printed
MIN_SLOW_STEPS: Final = 20
MAX_WAIT_SHARE: Final = 0.1


class WaitMeter:
    """Measures how long a loop waits for its batches, over all epochs.

    Args:
        on_stats: Is called with the stats of each window.
        profile: A tuned file with a prediction, or a profile that was loaded from one.
        quiet: Whether to print nothing.
        clock: Returns seconds.
    """

    def __init__(
        self,
        on_stats: Callable[[Stats], object] | None = None,
        profile: str | Path | TunedLoader | None = None,
        *,
        quiet: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.clock, self._on_stats = clock, StatsCallback(on_stats)
        self._predicted_rate = self._predicted_low = 0.0  # batches per second
        if profile is not None:
            found = (profile if isinstance(profile, TunedLoader) else load(profile)).profile
            interval, size = found.result.samples_per_second_ci95, found.search.batch_samples
            self._predicted_rate = found.result.samples_per_second / size
            self._predicted_low = interval[0] / size if interval else 0.0
        self.batches, self.seconds, self.wait_seconds = 0, 0.0, 0.0  # of all epochs
        self._waits = list[float]()  # of the window
        self._began = self._received = self._ended = self._gap = 0.0
        self._slow_seconds, self._slow_steps, self._has_warned = 0.0, 0, quiet

    @property
    def wait_share(self) -> float:
        """Share of the time that the loop waited."""
        return self.wait_seconds / max(self.seconds, 1e-9)

    def iterate(self, iterate: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Start an epoch; its first wait includes what that takes."""
        began = self.clock()
        return WatchedIterator(self, iterate(), began)

    def end_epoch(self) -> None:
        """Count the last step of an epoch."""
        self._ended = self.clock()
        self.seconds += self._ended - self._received

    def note_batch(self, requested: float, received: float, *, is_first: bool) -> None:
        """Count a batch, the first of its epoch or not."""
        if is_first:
            ended = max(self._ended, self._received)  # an epoch that the loop has left has no end
            self._gap = received - ended if ended else 0.0
            self._began, self._waits, self._received = requested, [], requested
        self.batches += 1
        self.seconds += received - self._received
        self.wait_seconds += received - requested
        self._waits.append(received - requested)
        self._received = received
        if received - self._began >= STATS_SECONDS:
            self._report(received)

    def _report(self, now: float) -> None:
        """Report a window and begin the next one."""
        seconds, waits = now - self._began, self._waits
        rate, share = len(waits) / seconds, min(1.0, sum(waits) / seconds)
        stats = {"data/batches_per_second": rate, "data/wait_share": share, "data/epoch_gap_seconds": self._gap}
        if len(waits) > 1:
            centiles = statistics.quantiles(waits, n=100, method="inclusive")
            stats |= {f"data/wait_seconds_p{one}": centiles[one - 1] for one in (50, 95, 99)}
        if self._predicted_rate:
            stats["data/rate_to_prediction"] = rate / self._predicted_rate
        self._on_stats(stats)
        self._warn(rate, share, seconds, len(waits))
        self._waits, self._began, self._gap = [], now, 0.0

    def _warn(self, rate: float, share: float, seconds: float, steps: int) -> None:
        is_below = rate < self._predicted_low
        if not (is_below or share > MAX_WAIT_SHARE):
            self._slow_seconds, self._slow_steps = 0.0, 0
            return
        self._slow_seconds += seconds
        self._slow_steps += steps
        is_due = not self._has_warned and read_local_rank() == 0
        if is_due and self._slow_seconds >= MIN_SLOW_SECONDS and self._slow_steps >= MIN_SLOW_STEPS:
            self._has_warned = True
            predicted = f"{format_rate(self._predicted_rate)} ({format_rate(self._predicted_low)} at least)"
            below = f", below the predicted {predicted}" if is_below else ""
            print_sentence(
                f"training gets {format_rate(rate)} batches/s{below}, and waits {share:.0%} of the time for data. Tune "
                "the loader with autotune.autopilot(loader), or run `dltune check`."
            )


class _Wrapper:
    def __init__(self, wrapped: Any) -> None:
        vars(self)["_wrapped"] = wrapped

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # a copy wraps nothing yet when Python looks for its special methods
            raise AttributeError(name)
        return getattr(self._wrapped, name)

    def __len__(self) -> int:
        return len(self._wrapped)

    def __bool__(self) -> bool:
        return bool(self._wrapped)


class WatchedIterator(_Wrapper):
    """An iterator whose waits are measured; everything else is that of the loader's iterator.

    Args:
        meter: Measures the waits.
        iterator: The loader's iterator.
        began: When its start began.
    """

    def __init__(self, meter: WaitMeter, iterator: Iterator[Any], began: float) -> None:
        super().__init__(iterator)
        self._meter, self._start_seconds, self._is_first = meter, meter.clock() - began, True

    def __iter__(self) -> WatchedIterator:
        return self

    def __next__(self) -> Any:
        meter = self._meter
        requested = meter.clock() - self._start_seconds
        try:
            batch = next(self._wrapped)
        except StopIteration:
            if not self._is_first:
                meter.end_epoch()
            self._is_first = True
            raise
        meter.note_batch(requested, meter.clock(), is_first=self._is_first)
        self._start_seconds, self._is_first = 0.0, False
        return batch


class WatchedLoader(_Wrapper):
    """An iterable whose waits are measured; everything else is that of the loader."""

    _meter: WaitMeter

    def __init__(self, loader: Iterable[Any], meter: WaitMeter) -> None:
        super().__init__(loader)
        vars(self)["_meter"] = meter  # attributes of the loader are set on it

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(self._wrapped, name):
            setattr(self._wrapped, name, value)
        else:
            super().__setattr__(name, value)

    def __iter__(self) -> Iterator[Any]:
        return self._meter.iterate(lambda: iter(self._wrapped))


def watch(
    loader: Iterable[Any],
    on_stats: Callable[[Stats], object] | None = None,
    profile: str | Path | TunedLoader | None = None,
) -> WatchedLoader:
    """Measure how long a training loop waits for an iterable of batches; the batches are unchanged.

    One sentence is printed if the loop waits more than 10% of the time, or its throughput is below the 95% interval of
    the profile, for 30 seconds and 20 steps.

    Args:
        loader: Any iterable of batches.
        on_stats: Is called every 10 seconds of an epoch with batches per second, the share of the time that the loop
            waits, percentiles of the waits and the gap before the epoch in seconds, and the ratio to the prediction;
            such as `wandb.log`.
        profile: A tuned file with the prediction; if it has several workloads, what `autotune.load` returns for one.

    Returns:
        The loader, whose waits are measured; all its attributes are those of the loader.
    """
    return WatchedLoader(loader, WaitMeter(on_stats, profile))
