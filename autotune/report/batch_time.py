"""Where the time of a batch goes: the work in it as the probe measured it, and in training before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from autotune.profiles.schema import TunedProfile
from autotune.units import format_seconds

SAMPLES_OF_UNKNOWN_BATCH: Final = 1000  # that the time is shown for
_PARTS: Final = {
    "load": "fetch",
    "collate": "collate",
    "transfer": "send to the training process",
    "copy_seconds": "copy to the device",
    "step": "step",
}


class BatchTime(NamedTuple):
    """What takes how long, and of which parts."""

    label: str
    total: str
    parts: str


def count_samples(profile: TunedProfile) -> int:
    """Count the samples that the table is about."""
    known = profile.evidence.batch_time if profile.evidence is not None else None
    return known.samples if known is not None else profile.dataloader.batch_size or SAMPLES_OF_UNKNOWN_BATCH


def list_batch_times(profile: TunedProfile) -> list[BatchTime]:
    """List the work in one batch where it is known, then what a batch takes before, where that was worse, and after."""
    result, base, rows = profile.result, profile.result.baseline, []
    work = profile.evidence.batch_time if profile.evidence is not None else None
    if work is not None:
        parts = {words: getattr(work, part) for part, words in _PARTS.items()}
        if not work.copy_seconds:
            del parts[_PARTS["copy_seconds"]]
        rows.append(_add_up("The work, one after the other", parts))
    samples = count_samples(profile)
    if base is not None and result.verdict == "faster":
        rows.append(
            _split("Before, in training", samples / max(base.samples_per_second, 1e-9), base.data_wait_fraction)
        )
    label = "Kept, in training" if result.verdict == "keep" else "After, in training"
    return [*rows, _split(label, samples / max(result.samples_per_second, 1e-9), result.data_wait_fraction)]


def _split(label: str, seconds: float, wait_fraction: float) -> BatchTime:
    waiting = wait_fraction * seconds
    return _add_up(label, {"waiting for data": waiting, "step and the rest": seconds - waiting})


def _add_up(label: str, parts: Mapping[str, float]) -> BatchTime:
    words = (f"{name} {format_seconds(seconds)}" for name, seconds in parts.items())
    return BatchTime(label, format_seconds(sum(parts.values())), " · ".join(words))
