"""Writes a tuned configuration in the words of other libraries, and names every setting they have no place for."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.errors import UsageError
from autotune.profiles.schema import TunedProfile
from autotune.profiles.targets import (
    NO_RESUMING,
    TARGETS,
    ExportTarget,
    Target,
    Translation,
    UnsupportedSetting,
    find_target,
    translate,
)


@dataclass(frozen=True, slots=True)
class Export:
    """A configuration in the words of one target.

    Attributes:
        target: What it is for.
        text: The export, to be printed or written to a file; ends with a line break.
        notes: Sentences its reader must know; where the format has comments, they stand in the text as well.
        unheld: The settings that the target has no place for; each is described in `notes`.
    """

    target: Target
    text: str
    notes: tuple[str, ...]
    unheld: tuple[UnsupportedSetting, ...]


def export(profile: TunedProfile, to: Target, *, force: bool = False) -> Export:
    """Write a tuned configuration in the words of another library.

    Args:
        profile: A profile of a tuned file. It is exported as it was tuned, and not fitted to this machine.
        to: What will read the export.
        force: Export a setting even if the target cannot keep its guarantee because of it.

    Returns:
        The text, and what the target cannot hold.

    Raises:
        UsageError: There is no such target, or it loses a guarantee and `force` is not given.
    """
    if to not in TARGETS:
        raise UsageError(f"{to!r} is none of {', '.join(TARGETS)}.")
    gives_up_resuming = to == "statefuldataloader" and not profile.dataloader.in_order
    if gives_up_resuming and not force:
        raise UsageError(
            f"Profile {profile.name} has in_order=False: StatefulDataLoader then gives no guarantee that it resumes "
            "where it stopped. Tune with --fix in_order=true, or give --force to do without."
        )
    target = find_target(to)
    found = translate(target, profile.workload, profile.config)
    notes = [_describe_batch_size(target, profile.dataloader.batch_size)]
    notes += [f"{target.hint}."] if target.hint else []
    notes += [NO_RESUMING] if gives_up_resuming else []
    notes += [setting.describe() for setting in found.unheld]
    return Export(to, _write(target, profile, found, notes), tuple(notes), found.unheld)


def _write(target: ExportTarget, profile: TunedProfile, found: Translation, notes: list[str]) -> str:
    comments = [f"# {line}" for line in (_describe_source(profile, target), *notes)] if target.has_comments else []
    return "\n".join([*comments, target.write(found.arguments), ""])


def _describe_batch_size(target: ExportTarget, size: int | None) -> str:
    name = target.names.get("batch_size", "batch_size")
    if size is None:
        return f"{name} is not set: this workload makes its own batches."
    return f"{name} is per process: N processes take N x {size} samples a step."


def _describe_source(profile: TunedProfile, target: ExportTarget) -> str:
    """Say what was tuned where, in one line whatever the names in the file contain."""
    there = profile.hardware
    gpu = f"{there.gpu_count} x {there.gpu}" if there.gpu else "no GPU"
    words = (
        f"For {target.reader}: profile {profile.name} of {profile.workload.dataset}, tuned by dltune "
        f"{profile.software.dltune} on {profile.created_at:%Y-%m-%d} with {there.usable_cpus:g} CPUs and {gpu}."
    )
    return repr(words)[1:-1]  # a line break in a name must not end the comment
