"""`autotune.watch`: measures how long a training loop waits for any iterable of batches, and changes nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from autotune.config import Interval
from autotune.online.autopilot import Stats, print_sentence
from autotune.profiles.load import select_profile

STATS_SECONDS: Final = 10.0
MIN_SLOW_SECONDS: Final = 30.0  # of windows in a row, before a sentence is printed
MIN_SLOW_STEPS: Final = 20
MAX_WAIT_SHARE: Final = 0.1


class WatchedLoader:
    """An iterable whose waits are measured; everything else is that of the loader."""

    def __init__(
        self,
        loader: Iterable[Any],
        on_stats: Callable[[Stats], object] | None,
        profile: str | Path | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._loader, self._on_stats, self._clock = loader, on_stats, clock
        self._predicted: tuple[float, Interval] | None = None  # batches per second
        if profile is not None:
            found = select_profile(Path(profile))
            size, rate = found.search.batch_samples, found.result.samples_per_second
            low, high = found.result.samples_per_second_ci95 or (rate, rate)
            self._predicted = rate / size, (low / size, high / size)
        self._waits = list[float]()
        self._began: float | None = None  # of the window
        self._ended: float | None = None  # of the epoch before
        self._slow_seconds, self._slow_steps, self._has_warned, self._gap = 0.0, 0, False, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # if the loader has a length

    def __iter__(self) -> Iterator[Any]:
        requested = self._clock()
        self._gap, self._waits, self._began = 0.0, [], requested
        is_first, ended = True, self._ended
        for batch in self._loader:
            now = self._clock()
            self._waits.append(now - requested)
            if is_first and ended is not None:
                self._gap = now - ended
            is_first = False
            if now - self._began >= STATS_SECONDS:
                self._report(now)
            yield batch
            requested = self._clock()
        self._ended = self._clock()

    def _report(self, now: float) -> None:
        """Report a window and begin the next one."""
        assert self._began is not None
        seconds, waits = now - self._began, self._waits
        rate, share = len(waits) / seconds, min(1.0, sum(waits) / seconds)
        stats = {"data/batches_per_second": rate, "data/wait_share": share, "data/epoch_gap_seconds": self._gap}
        if len(waits) > 1:
            centiles = statistics.quantiles(waits, n=100, method="inclusive")
            stats |= {f"data/wait_seconds_p{one}": centiles[one - 1] for one in (50, 95, 99)}
        if self._predicted is not None:
            stats["data/rate_to_prediction"] = rate / self._predicted[0]
        if self._on_stats is not None:
            self._on_stats(stats)
        self._warn(rate, share, seconds, len(waits))
        self._waits, self._began, self._gap = [], now, 0.0

    def _warn(self, rate: float, share: float, seconds: float, steps: int) -> None:
        is_below = self._predicted is not None and rate < self._predicted[1][0]
        if not (is_below or share > MAX_WAIT_SHARE):
            self._slow_seconds, self._slow_steps = 0.0, 0
            return
        self._slow_seconds += seconds
        self._slow_steps += steps
        if not self._has_warned and self._slow_seconds >= MIN_SLOW_SECONDS and self._slow_steps >= MIN_SLOW_STEPS:
            self._has_warned = True
            below = ""
            if is_below and self._predicted is not None:
                below = f", below the predicted {self._predicted[0]:.3g} ({self._predicted[1][0]:.3g} at least)"
            print_sentence(
                f"training gets {rate:.3g} batches/s{below}, and waits {share:.0%} of the time for data. Tune the "
                "loader with autotune.autopilot(loader), or run `dltune check`."
            )


def watch(
    loader: Iterable[Any], on_stats: Callable[[Stats], object] | None = None, profile: str | Path | None = None
) -> WatchedLoader:
    """Measure how long a training loop waits for an iterable of batches; the batches are unchanged.

    One sentence is printed if the loop waits more than 10% of the time, or is slower than the interval of a profile
    predicts, for 30 seconds and 20 steps.

    Args:
        loader: Any iterable of batches.
        on_stats: Is called every 10 seconds with batches per second, the share of the time that the loop waits,
            percentiles of the waits and the gap before the epoch in seconds, and the ratio to the prediction; such as
            `wandb.log`.
        profile: A tuned file with the prediction.
    """
    return WatchedLoader(loader, on_stats, profile)
