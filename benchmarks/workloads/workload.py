"""What is a workload of the benchmarks, and how long is it looked at?"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

REHEARSAL_BATCH: Final = 16


@dataclass(frozen=True, slots=True)
class Pacing:
    """How long configurations are trained with: short runs that screen them, and whole ones."""

    screen_epochs: int  # of a short run
    first_screen_seconds: float | None  # until the first short run is given up; None for never
    hopeless_factor: float  # times the shortest of them so far; a slower one is given up
    min_screen_seconds: float  # that each of them has in any case
    min_epochs: int  # of a whole run
    run_seconds: float  # of a whole run; a slower configuration has fewer epochs
    give_up_seconds: float | None  # until a whole run is given up; None for never

    def plan_epochs(self, wanted: int, epoch_seconds: float) -> int:
        """Return the epochs of a whole run, at most those wanted; fewer if an epoch takes long."""
        return min(wanted, max(self.min_epochs, int(self.run_seconds / epoch_seconds)))

    def screen_seconds(self, best_seconds: float | None) -> float | None:
        """Give the seconds after which a short run is given up, where the shortest so far took `best_seconds`."""
        if best_seconds is None:
            return self.first_screen_seconds
        return max(self.min_screen_seconds, self.hopeless_factor * best_seconds)


LONG: Final = Pacing(
    screen_epochs=3,
    first_screen_seconds=None,
    hopeless_factor=2.5,
    min_screen_seconds=1.5,
    min_epochs=2,
    run_seconds=10.0,
    give_up_seconds=None,
)
SHORT: Final = Pacing(
    screen_epochs=2,
    first_screen_seconds=3.0,
    hopeless_factor=1.5,
    min_screen_seconds=0.5,
    min_epochs=1,
    run_seconds=4.0,
    give_up_seconds=6.0,
)


@dataclass(frozen=True, slots=True)
class BenchWorkload:
    """One workload and what is tried on it.

    One with a device is short, warmed up before it is timed, and tried with every way to the device.
    """

    name: str
    dataset: str  # import string of the factory
    batch_size: int = 32  # never tuned here, because it changes training
    dataset_args: dict[str, Any] = field(default_factory=dict)
    rehearsal_args: dict[str, Any] = field(default_factory=dict)  # in the place of `dataset_args`, for a small dataset
    step_seconds: float = 0.0  # of an emulated step: the process sleeps, as beside an accelerator
    step: str | None = None  # import string of a real step's factory, which takes the device where there is one
    device: str | None = None  # as on the command line; None for a step that has none
    workers: tuple[int, ...] = ()  # of the grid, on both sides of the optimum; none for those up to the CPUs
    prefetch: tuple[int, ...] = (1, 2, 4)  # of the grid
    unordered: tuple[int, ...] = ()  # worker counts tried with `in_order=False` as well
    restarting: tuple[int, ...] = ()  # worker counts tried with `persistent_workers=False` as well
    epochs: int = 10  # of a whole training run
    trials: int = 40  # of dltune, at most
    trial_seconds: float | None = None  # of one of them, at most; None for dltune's own

    @property
    def pacing(self) -> Pacing:
        """How long it is looked at."""
        return LONG if self.device is None else SHORT

    def shorten(self) -> BenchWorkload:
        """Make one that is measured in about a minute, for a rehearsal."""
        if self.device is not None:
            smaller = replace(self, dataset_args=self.rehearsal_args, batch_size=REHEARSAL_BATCH, epochs=2)
            return replace(smaller, workers=(0, 1), trials=1, trial_seconds=0.3)
        middle = self.workers[: len(self.workers) // 2 + 1][-2:]
        smaller = replace(self, workers=(0, *middle), prefetch=(2,), unordered=(), restarting=())
        return replace(smaller, epochs=2, trials=4, trial_seconds=1.0)

    def on_device(self, device: str) -> BenchWorkload:
        """Return the same workload with its step on another device."""
        return replace(self, device=device)
