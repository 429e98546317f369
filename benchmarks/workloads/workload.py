"""A workload of the benchmarks, and how long its configurations are trained."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

REHEARSAL_BATCH: Final = 16


@dataclass(frozen=True, slots=True)
class Pacing:
    """How long configurations are trained: short runs that screen them, and whole runs.

    Attributes:
        screen_epochs: Epochs of a short run.
        first_screen_seconds: Time limit of the first short run; None for none.
        hopeless_factor: A short run is given up after this many times the shortest one so far.
        min_screen_seconds: But not before that time.
        min_epochs: Epochs of a whole run, at least.
        run_seconds: No further epoch of a whole run starts after that time.
        give_up_seconds: A whole run is given up after that time; None for never.
        max_rounds_factor: The most rounds of whole runs over the least; further rounds are for runs that scatter.
    """

    screen_epochs: int
    first_screen_seconds: float | None
    hopeless_factor: float
    min_screen_seconds: float
    min_epochs: int
    run_seconds: float
    give_up_seconds: float | None
    max_rounds_factor: int

    def screen_seconds(self, best_seconds: float | None) -> float | None:
        """Return the time limit of a short run, if the shortest so far took `best_seconds`."""
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
    max_rounds_factor=3,
)
SHORT: Final = Pacing(
    screen_epochs=2,
    first_screen_seconds=3.0,
    hopeless_factor=1.5,
    min_screen_seconds=0.5,
    min_epochs=1,
    run_seconds=4.0,
    give_up_seconds=6.0,
    max_rounds_factor=1,
)


@dataclass(frozen=True, slots=True)
class BenchWorkload:
    """One workload and what is tried on it.

    One with a device is short, warmed up before it is timed, and tried with every way to copy to the device.

    Attributes:
        name: Its name.
        dataset: Import string of the factory.
        batch_size: Never tuned here, because it changes training.
        dataset_args: Keyword arguments of the factory.
        rehearsal_args: Those of a rehearsal, which make a small dataset.
        step_seconds: Length of a simulated step: the process sleeps, as it does while an accelerator works.
        step: Import string of a real step's factory, which takes the device if there is one.
        device: As on the command line; None for a step without one.
        workers: Of the grid, on both sides of the optimum; empty for numbers up to the CPUs.
        prefetch: Of the grid.
        unordered: Numbers of workers that are also tried with `in_order=False`.
        restarting: Numbers of workers that are also tried with `persistent_workers=False`.
        epochs: Epochs of a whole run.
        trials: Maximum number of dltune's trials.
        trial_seconds: dltune's --trial-time; None for its default.
    """

    name: str
    dataset: str
    batch_size: int = 32
    dataset_args: dict[str, Any] = field(default_factory=dict)
    rehearsal_args: dict[str, Any] = field(default_factory=dict)
    step_seconds: float = 0.0
    step: str | None = None
    device: str | None = None
    workers: tuple[int, ...] = ()
    prefetch: tuple[int, ...] = (1, 2, 4)
    unordered: tuple[int, ...] = ()
    restarting: tuple[int, ...] = ()
    epochs: int = 10
    trials: int = 40
    trial_seconds: float | None = None

    @property
    def pacing(self) -> Pacing:
        """How long its configurations are trained."""
        return LONG if self.device is None else SHORT

    def shorten(self) -> BenchWorkload:
        """Return a tiny version for a rehearsal, measured in about a minute."""
        if self.device is not None:
            smaller = replace(self, dataset_args=self.rehearsal_args, batch_size=REHEARSAL_BATCH, epochs=2)
            return replace(smaller, workers=(0, 1), trials=1, trial_seconds=0.3)
        middle = self.workers[: len(self.workers) // 2 + 1][-2:]
        smaller = replace(self, workers=(0, *middle), prefetch=(2,), unordered=(), restarting=())
        return replace(smaller, epochs=2, trials=4, trial_seconds=1.0)

    def on_device(self, device: str) -> BenchWorkload:
        """Return the same workload with its step on another device."""
        return replace(self, device=device)
