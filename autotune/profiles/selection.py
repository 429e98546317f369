"""Picks the profile of a tuned file that fits this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autotune.errors import ProfileError
from autotune.profiles.file import read_file
from autotune.profiles.matching import MatchQuality, rank_fit
from autotune.profiles.schema import TunedProfile
from autotune.system.gpus import may_have, read_gpus
from autotune.system.hardware import Accelerator, Hardware
from autotune.system.kernel_files import DEV
from autotune.system.machine import MachineProfile, read_machine


def select_profile(path: Path, name: str | None = None) -> TunedProfile:
    """Select one profile as it was tuned: that of a name, the only one, or the one that fits this machine.

    Raises:
        ProfileError: The file cannot be read or is not valid, has no such profile, or several and none that fits.
    """
    profiles = _read_named(path, name)
    if len(profiles) == 1:
        return profiles[0]
    found, quality = _rank(profiles, read_machine())
    if quality > MatchQuality.COMPATIBLE:
        known = ", ".join(profile.name for profile in profiles)
        raise ProfileError(f"{path} holds {known}; none was tuned for a machine like this. Name one with --profile.")
    return found


def nearest_profile(
    path: Path, name: str | None, machine: MachineProfile, ranks: int | None = None
) -> tuple[TunedProfile, MatchQuality]:
    """Find the profile that fits a machine best, whether well or not, the newest of equals.

    With a number of training processes on the host, one that was tuned for as many is preferred among those.

    Raises:
        ProfileError: The file cannot be read or is not valid, or has no such profile.
    """
    return _rank(_read_named(path, name), machine, ranks)


def _rank(
    profiles: Sequence[TunedProfile], machine: MachineProfile, ranks: int | None = None
) -> tuple[TunedProfile, MatchQuality]:
    def order(pair: tuple[MatchQuality, TunedProfile]) -> tuple[MatchQuality, bool, float]:
        quality, profile = pair
        is_for_others = ranks is not None and profile.workload.nproc_per_node != ranks
        return quality, is_for_others, -profile.created_at.timestamp()

    quality, best = min(((rank_fit(one, describe_local_hardware(machine, one)), one) for one in profiles), key=order)
    return best, quality


def _read_named(path: Path, name: str | None) -> list[TunedProfile]:
    profiles = read_file(path).profiles
    if not profiles:
        raise ProfileError(f"{path} holds no profile. Write one with dltune --dataset pkg.mod:make_ds.")
    named = [profile for profile in profiles if name is None or profile.name == name]
    if not named:
        known = ", ".join(profile.name for profile in profiles)
        raise ProfileError(f"{path} holds no profile named {name!r}; it holds {known}.")
    return named


def describe_local_hardware(
    machine: MachineProfile, profile: TunedProfile, *, gpus: Sequence[str] | None = None, dev: Path = DEV
) -> Hardware:
    """Describe this machine by what a profile is bound to.

    On a machine with accelerators of several models, those of the profile's model count. One that can be known by torch
    alone is taken for the profile's, and for as many, where it may be.

    Args:
        machine: This machine.
        profile: The profile.
        gpus: Names of the GPUs that the driver lists; None reads them.
        dev: Where the device files lie.
    """
    there = profile.hardware.gpu
    listed = read_gpus() if gpus is None else gpus
    if not listed and there and may_have(there, dev):
        return machine.hardware(Accelerator(name=there, count=profile.hardware.gpu_count))
    names = [there if there and _may_be(gpu, there) else gpu for gpu in listed]
    gpu = there if there in names else next(iter(names), None)
    return machine.hardware(None if gpu is None else Accelerator(name=gpu, count=names.count(gpu)))


def _may_be(gpu: str, there: str) -> bool:
    """Tell whether the slice of a GPU that is visible may be the one that was tuned on."""
    return gpu.endswith(" MIG") and there.startswith(f"{gpu} ")
