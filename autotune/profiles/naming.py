"""Names profiles after their machine and workload: another name wherever `matching` finds something that decides.

Amounts count as alike within a few per cent, and no digest is the same for all numbers that are alike in pairs. So the
digest goes by steps, fine enough to tell apart whatever differs; and a profile that is alike one in the file, but has
come to lie on the next step, takes that one's name, and with it its place.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable
from typing import Any, Final

from autotune.profiles.matching import (
    SAME_BYTES,
    SAME_LENGTH,
    SAME_SIZE,
    Difference,
    compare_hardware,
    compare_software,
    compare_workloads,
)
from autotune.profiles.schema import TunedProfile
from autotune.system.hardware import Hardware

GIB: Final = 2**30
GENERATED_NAME: Final = re.compile(
    r"(cpu|\S+x\d+)-[\d.]+c(-\d+[gm])?-[0-9a-f]{4,64}"
)  # without the memory in earlier versions
DIGITS: Final = 4  # of the digest in a name; more where those are taken
NAME_IGNORED_FIELDS: Final = ("working_dir",)  # of the workload: the same code in another folder


def make_profile_name(profile: TunedProfile, digits: int = DIGITS) -> str:
    """Name a profile after its machine and workload, as in `h100x1-12c-64g-a41f`.

    Args:
        profile: The profile, under whatever name.
        digits: How long the digest is.

    Returns:
        Accelerators, CPUs, memory, and a digest of everything that decides.
    """
    digest = hashlib.sha256(json.dumps(_list_what_decides(profile), sort_keys=True).encode()).hexdigest()[:digits]
    there = profile.hardware
    return f"{_describe_gpus(there)}-{there.usable_cpus:g}c-{_describe_memory(there.memory_limit_bytes)}-{digest}"


def resolve_profile_name(profile: TunedProfile, others: Iterable[TunedProfile]) -> TunedProfile:
    """Give a profile its name: that of the one whose place it takes, or one of its own.

    Args:
        profile: The profile, under whatever name.
        others: The profiles that lie in the file.

    Returns:
        The profile, renamed. It never takes the place of one that was named by hand, nor of one for another machine or
        workload whose digest begins alike: the digest is longer then.
    """
    others = tuple(others)
    alike = [other.name for other in others if GENERATED_NAME.fullmatch(other.name) and is_alike(other, profile)]
    taken = {other.name for other in others} - set(alike)
    names = [name for digits in range(DIGITS, 65) if (name := make_profile_name(profile, digits)) not in taken]
    own = next((name for name in names if name in alike), None)
    return profile.model_copy(update={"name": own or next(iter([*alike, *names]))})


def is_alike(there: TunedProfile, here: TunedProfile) -> bool:
    """Tell whether two profiles were tuned for the same workload, on machines that differ in nothing that decides."""
    differences: tuple[Difference, ...] = (
        *compare_hardware(there.hardware, here.hardware),
        *compare_software(there.software, here.software),
        *compare_workloads(there.workload, here.workload),
    )
    same_request = _get_workload_request(there) == _get_workload_request(here)
    return same_request and not any(difference.decides for difference in differences)


def _list_what_decides(profile: TunedProfile) -> dict[str, Any]:
    there, workload = profile.hardware, profile.workload
    return {
        "gpu": there.gpu,
        "gpu_count": there.gpu_count,
        "usable_cpus": there.usable_cpus,
        "memory": _find_step(there.memory_limit_bytes, SAME_BYTES),
        "shm": _find_step(there.shm_limit_bytes, SAME_BYTES),
        "nofile": there.nofile_limit,
        "start_method": profile.software.start_method,
        "dataset": workload.dataset,
        "step": workload.step,
        "sample_bytes": _find_step(workload.sample_bytes, SAME_SIZE),
        "samples": _find_step(workload.samples or 0, SAME_LENGTH),
        "request": _get_workload_request(profile),
    }


def _get_workload_request(profile: TunedProfile) -> dict[str, Any]:
    """Give how the workload was asked for; its arguments alone where the profile does not hold the request."""
    asked = (profile.request or {}).get("workload")
    if not isinstance(asked, dict):
        return {"dataset_args": profile.workload.dataset_args}
    return {name: value for name, value in asked.items() if name not in NAME_IGNORED_FIELDS}


def _find_step(amount: int, share: float) -> int:
    """Find the step of an amount on a ladder: no step holds two amounts that differ by more than `share`."""
    return math.floor(math.log(amount) / math.log1p(share)) if amount else -1


def _describe_gpus(hardware: Hardware) -> str:
    if hardware.gpu is None:
        return "cpu"
    model = re.search(r"[A-Z]+\d\w*", hardware.gpu)
    slug = (model[0] if model else hardware.gpu.split()[-1]).lower()
    return f"{slug}x{hardware.gpu_count}"


def _describe_memory(size: int) -> str:
    """Write memory in whole GiB, as in `24g`; below one in MiB."""
    return f"{size / GIB:.0f}g" if size >= GIB else f"{size * 1024 / GIB:.0f}m"
