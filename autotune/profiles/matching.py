"""Compares the machine and the workload of a profile with those at hand: what decides, and what only advises.

The accelerators, the usable CPUs, memory, /dev/shm and the limit of open files decide: a profile that is tuned under
other ones is not the best here, or not safe. The processor's name and the versions of torch and Python advise. The
dataset's import string and the size of its samples decide as well, where they can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import IntEnum
from typing import Final

from autotune.config import FrozenModel
from autotune.profiles.schema import TunedProfile, WorkloadIdentity
from autotune.system.hardware import Hardware, Software
from autotune.units import format_bytes, format_seconds

DAY_SECONDS: Final = 86400.0
SAME_BYTES: Final = 0.02  # of memory or /dev/shm: a kernel update moves them by less
SAME_SIZE: Final = 0.1  # of the bytes of a sample: augmentation and padding move the mean by less
SAME_LENGTH: Final = 0.5  # of the number of samples: it matters for short epochs only


class Difference(FrozenModel):
    """Something that is not as it was when a profile was tuned.

    Attributes:
        what: What differs.
        was: How it was.
        here: How it is.
        decides: Whether the profile should be tuned anew for it.
        is_less: Whether there is less of it here than there was, or none.
    """

    what: str
    was: str
    here: str
    decides: bool = True
    is_less: bool = False

    def describe(self) -> str:
        """Say it in a few words."""
        return f"{self.what} {self.here} instead of {self.was}"


def compare_hardware(there: Hardware, here: Hardware) -> tuple[Difference, ...]:
    """List how this machine differs from the one a profile was tuned on.

    Args:
        there: The machine of the profile.
        here: This machine.

    Returns:
        The differences, those that decide first; empty when the machines are alike.
    """
    return (*_compare_gpus(there, here), *_compare_amounts(there, here), *_compare_names(there, here))


def _compare_gpus(there: Hardware, here: Hardware) -> Iterator[Difference]:
    if there.gpu != here.gpu:
        yield Difference(what="GPU", was=there.gpu or "no GPU", here=here.gpu or "no GPU", is_less=True)
    elif there.gpu_count != here.gpu_count:
        fewer = here.gpu_count < there.gpu_count
        yield Difference(what="GPUs", was=f"{there.gpu_count}", here=f"{here.gpu_count}", is_less=fewer)


def _compare_amounts(there: Hardware, here: Hardware) -> Iterator[Difference]:
    if there.usable_cpus != here.usable_cpus:
        fewer = here.usable_cpus < there.usable_cpus
        yield Difference(what="CPUs", was=f"{there.usable_cpus:g}", here=f"{here.usable_cpus:g}", is_less=fewer)
    sizes = (
        ("memory", there.memory_limit_bytes, here.memory_limit_bytes),
        ("/dev/shm", there.shm_limit_bytes, here.shm_limit_bytes),
    )
    for what, was, now in sizes:
        if abs(now - was) > SAME_BYTES * was:
            yield Difference(what=what, was=format_bytes(was), here=format_bytes(now), is_less=now < was)
    if there.nofile_limit != here.nofile_limit:
        fewer = here.nofile_limit < there.nofile_limit
        yield Difference(what="open files", was=f"{there.nofile_limit:,}", here=f"{here.nofile_limit:,}", is_less=fewer)


def _compare_names(there: Hardware, here: Hardware) -> Iterator[Difference]:
    if there.cpu != here.cpu:
        yield Difference(what="processor", was=there.cpu or "unknown", here=here.cpu or "unknown", decides=False)


def compare_software(there: Software, here: Software) -> tuple[Difference, ...]:
    """List the versions that differ; all of them only advise, but for the start method of workers.

    Args:
        there: Versions a profile was tuned with.
        here: Versions at hand.

    Returns:
        The differences.
    """
    names = (("torch", "torch"), ("cuda", "CUDA"), ("python", "Python"), ("start_method", "start method"))
    pairs = ((label, getattr(there, name), getattr(here, name), name == "start_method") for name, label in names)
    return tuple(
        Difference(what=label, was=was or "none", here=now or "none", decides=decides)
        for label, was, now, decides in pairs
        if was != now
    )


def compare_workloads(there: WorkloadIdentity, here: WorkloadIdentity) -> tuple[Difference, ...]:
    """List how the workload differs from the one that was tuned.

    Args:
        there: The workload of the profile.
        here: The workload at hand.

    Returns:
        The differences; the size of a sample counts from 10 % on, the number of samples from 50 % on.
    """
    found = []
    for what in ("dataset", "step"):
        was, now = getattr(there, what), getattr(here, what)
        if was != now:
            found.append(Difference(what=what, was=was, here=now))
    if abs(here.sample_bytes - there.sample_bytes) > SAME_SIZE * there.sample_bytes:
        was, now = format_bytes(there.sample_bytes), format_bytes(here.sample_bytes)
        found.append(Difference(what="bytes of a sample", was=was, here=now))
    if there.samples and here.samples and abs(here.samples - there.samples) > SAME_LENGTH * there.samples:
        found.append(Difference(what="samples", was=f"{there.samples:,}", here=f"{here.samples:,}"))
    return tuple(found)


def compare_age(created_at: datetime, now: datetime, most_seconds: float | None) -> tuple[Difference, ...]:
    """Tell whether a profile is older than allowed.

    Args:
        created_at: When it was tuned.
        now: The moment of asking.
        most_seconds: Age that is allowed, in seconds; None for any.

    Returns:
        One difference, or none.
    """
    age = (now - created_at).total_seconds()
    if most_seconds is None or age <= most_seconds:
        return ()
    return (Difference(what="age", was=f"at most {_describe_age(most_seconds)}", here=_describe_age(age)),)


def _describe_age(seconds: float) -> str:
    days = int(seconds // DAY_SECONDS)
    return f"{days} days" if days > 1 else format_seconds(seconds)


class MatchQuality(IntEnum):
    """How well a profile suits a machine, the best first."""

    EXACT = 0
    COMPATIBLE = 1
    SMALLER = 2
    OTHER_GPU = 3


def rank_fit(profile: TunedProfile, here: Hardware) -> MatchQuality:
    """Rank how well a profile suits this machine.

    Args:
        profile: The profile.
        here: This machine.

    Returns:
        `EXACT` when it was tuned on a machine like this one, `COMPATIBLE` when this one has at least as much of
        everything, `SMALLER` when it lacks something, `OTHER_GPU` when it has another accelerator or none.
    """
    differences = compare_hardware(profile.hardware, here)
    if any(difference.what == "GPU" for difference in differences):
        return MatchQuality.OTHER_GPU
    if any(difference.is_less for difference in differences):
        return MatchQuality.SMALLER
    return MatchQuality.COMPATIBLE if differences else MatchQuality.EXACT
