"""Compares the machine and the workload of a profile with those at hand: what decides, and what only advises.

The accelerators, the usable CPUs, memory, /dev/shm and the limit of open files decide: a profile that is tuned under
other ones is not the best here, or not safe. The processor's name and the versions of torch and Python advise. The
dataset's import string, its split and the size of its samples decide as well, where they can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Final

from autotune.profiles.identity import WorkloadIdentity
from autotune.profiles.schema import TunedProfile
from autotune.system.hardware import Hardware, Software
from autotune.units import format_bytes, format_seconds

DAY_SECONDS: Final = 86400.0
MAX_BYTES_CHANGE: Final = 0.02  # of memory or /dev/shm: a kernel update moves them by less
MAX_SAMPLE_SIZE_CHANGE: Final = 0.1  # augmentation and padding move the mean by less
MAX_LENGTH_CHANGE: Final = 0.5  # of the number of samples: it matters for short epochs only


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Something that is not as it was when a profile was tuned.

    Attributes:
        what: What differs.
        was: How it was.
        here: How it is.
        requires_retune: Whether it decides; else it only advises.
        is_shortfall: Whether there is less of it here than there was, or none.
    """

    what: str
    was: str
    here: str
    requires_retune: bool = True
    is_shortfall: bool = False

    def describe(self) -> str:
        """Say it in a few words."""
        return f"{self.what} {self.here} instead of {self.was}"


def compare_hardware(there: Hardware, here: Hardware) -> tuple[Difference, ...]:
    """List how this machine differs from the one a profile was tuned on, what decides first."""
    found = [*_compare_gpus(there, here), *_compare_amounts(there, here)]
    if there.cpu != here.cpu:
        was, now = there.cpu or "unknown", here.cpu or "unknown"
        found.append(Difference(what="processor", was=was, here=now, requires_retune=False))
    return tuple(found)


def _compare_gpus(there: Hardware, here: Hardware) -> Iterator[Difference]:
    if there.gpu != here.gpu:
        yield Difference(what="GPU", was=there.gpu or "no GPU", here=here.gpu or "no GPU", is_shortfall=True)
    elif there.gpu_count != here.gpu_count:
        fewer = here.gpu_count < there.gpu_count
        yield Difference(what="GPUs", was=f"{there.gpu_count}", here=f"{here.gpu_count}", is_shortfall=fewer)


def _compare_amounts(there: Hardware, here: Hardware) -> Iterator[Difference]:
    for what, was, now, tolerance, write in (
        ("CPUs", there.usable_cpus, here.usable_cpus, 0, "{:g}".format),
        ("memory", there.memory_limit_bytes, here.memory_limit_bytes, MAX_BYTES_CHANGE, format_bytes),
        ("/dev/shm", there.shm_limit_bytes, here.shm_limit_bytes, MAX_BYTES_CHANGE, format_bytes),
        ("open files", there.nofile_limit, here.nofile_limit, 0, "{:,}".format),
    ):
        if abs(now - was) > tolerance * was:
            yield Difference(what=what, was=write(was), here=write(now), is_shortfall=now < was)


def compare_software(there: Software, here: Software) -> tuple[Difference, ...]:
    """List the versions that differ; all of them only advise, but for the start method of workers."""
    versions = (
        ("torch", there.torch, here.torch),
        ("CUDA", there.cuda, here.cuda),
        ("Python", there.python, here.python),
        ("start method", there.start_method, here.start_method),
        ("threads of libraries", _write_variables(there), _write_variables(here)),
    )
    return tuple(
        Difference(what=what, was=was or "none", here=now or "none", requires_retune=what == "start method")
        for what, was, now in versions
        if was != now
    )


def _write_variables(software: Software) -> str:
    return " ".join(f"{name}={value}" for name, value in software.thread_variables.items())


def compare_workloads(there: WorkloadIdentity, here: WorkloadIdentity) -> tuple[Difference, ...]:
    """List how the workload differs from the one that was tuned."""
    found = []
    if there.dataset != here.dataset:
        found.append(Difference(what="dataset", was=there.dataset, here=here.dataset))
    if there.split != here.split:
        found.append(Difference(what="split", was=there.split or "none", here=here.split or "none"))
    if there.loader_class != here.loader_class and None not in (there.kind, here.kind):
        was, now = there.loader_class or "DataLoader", here.loader_class or "DataLoader"
        found.append(Difference(what="loader", was=was, here=now))
    if there.step != here.step:
        found.append(Difference(what="step", was=there.step, here=here.step))
    if abs(here.sample_bytes - there.sample_bytes) > MAX_SAMPLE_SIZE_CHANGE * there.sample_bytes:
        was, now = format_bytes(there.sample_bytes), format_bytes(here.sample_bytes)
        found.append(Difference(what="bytes of a sample", was=was, here=now))
    if there.samples and here.samples and abs(here.samples - there.samples) > MAX_LENGTH_CHANGE * there.samples:
        found.append(Difference(what="samples", was=f"{there.samples:,}", here=f"{here.samples:,}"))
    return tuple(found)


def compare_age(created_at: datetime, now: datetime, max_seconds: float | None) -> tuple[Difference, ...]:
    """Give a difference where a profile is older than allowed; None allows any age."""
    age = (now - created_at).total_seconds()
    if max_seconds is None or age <= max_seconds:
        return ()
    return (Difference(what="age", was=f"at most {_describe_age(max_seconds)}", here=_describe_age(age)),)


def _describe_age(seconds: float) -> str:
    days = int(seconds // DAY_SECONDS)
    return f"{days} days" if days > 1 else format_seconds(seconds)


class MatchQuality(IntEnum):
    """How well a profile suits a machine, the best first."""

    EXACT = 0
    COMPATIBLE = 1  # it has at least as much of everything
    SMALLER = 2
    OTHER_GPU = 3  # or none


def rank_fit(profile: TunedProfile, here: Hardware) -> MatchQuality:
    """Rank how well a profile suits this machine."""
    differences = compare_hardware(profile.hardware, here)
    if any(difference.what == "GPU" for difference in differences):
        return MatchQuality.OTHER_GPU
    if any(difference.is_shortfall for difference in differences):
        return MatchQuality.SMALLER
    return MatchQuality.COMPATIBLE if differences else MatchQuality.EXACT
