"""The table of all trials: its columns, and for each trial what is read and what is sorted by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from autotune.config import FrozenModel, LoaderConfig
from autotune.knobs import describe_switches
from autotune.profiles.schema import TrialSummary, TunedProfile
from autotune.report.answer import format_number
from autotune.units import format_bytes, format_percent

FATES: Final = {
    "completed": "Measured.",
    "stopped_early": "Stopped early: it could not come near the best.",
    "skipped": "Skipped.",
    "failed": "Failed.",
}


class Cell(FrozenModel):
    """One cell.

    Attributes:
        text: What is read.
        value: What it is sorted by: a number or a word; empty where unknown.
        kind: How it is set: `number`, `words` that may be broken, or a `reason`.
    """

    text: str
    value: str
    kind: str = "words"


class TrialRow(FrozenModel):
    """One trial."""

    cells: tuple[Cell, ...]
    is_answer: bool


def list_columns() -> list[tuple[str, str]]:
    """List the headings of the columns, and how their cells are set."""
    return [(heading, kind) for heading, kind, _ in _COLUMNS]


def list_rows(profile: TunedProfile) -> list[TrialRow]:
    """List the trials in the order in which they were made; none where they were not recorded."""
    trials = profile.evidence.trials if profile.evidence is not None else ()
    return [_make_row(trial, is_answer=trial.config == profile.config) for trial in trials]


def _make_row(trial: TrialSummary, *, is_answer: bool) -> TrialRow:
    cells = [read(trial).model_copy(update={"kind": kind}) for _, kind, read in _COLUMNS]
    if is_answer:
        words = f"{cells[-1].text} This is the answer."
        cells[-1] = Cell(text=words, value=words, kind=cells[-1].kind)
    return TrialRow(cells=tuple(cells), is_answer=is_answer)


def _name_config(trial: TrialSummary) -> LoaderConfig:
    return LoaderConfig(dataloader=trial.dataloader, process=trial.process)


def _count(number: int | None, none: str = "") -> Cell:
    return Cell(text=none if number is None else f"{number}", value="" if number is None else f"{number}")


def _measure(number: float | None, write: Callable[[float], str]) -> Cell:
    """Make a cell of a quantity that is unknown where it is 0."""
    return Cell(text=write(number), value=repr(number)) if number else Cell(text="-", value="")


def _read_flags(trial: TrialSummary) -> Cell:
    words = ", ".join(describe_switches(trial.config))
    return Cell(text=words or "-", value=words)


def _read_fate(trial: TrialSummary) -> Cell:
    words = f"{FATES[trial.outcome]} {trial.reason}".strip()
    return Cell(text=words, value=words)


Read = Callable[[TrialSummary], Cell]
_COLUMNS: Final[tuple[tuple[str, str, Read], ...]] = (
    ("Trial", "number", lambda trial: _count(trial.number)),
    ("Workers", "number", lambda trial: _count(trial.dataloader.num_workers)),
    ("Prefetch", "number", lambda trial: _count(trial.dataloader.prefetch_factor, "-")),
    ("Batch", "number", lambda trial: _count(trial.dataloader.batch_size, "own")),
    ("Switches", "words", _read_flags),
    ("Samples/s", "number", lambda trial: _measure(trial.samples_per_second, format_number)),
    ("±", "number", lambda trial: _measure(trial.relative_error, format_percent)),
    ("Expected", "number", lambda trial: _measure(trial.expected_samples_per_second, format_number)),
    ("Memory", "number", lambda trial: _measure(trial.peak_host_bytes, format_bytes)),
    ("/dev/shm", "number", lambda trial: _measure(trial.peak_shm_bytes, format_bytes)),
    ("What became of it", "reason", _read_fate),
)
