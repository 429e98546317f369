"""Names profiles after their machine and workload.

Amounts count as alike within a few per cent (`matching`), and no digest is the same for all that are alike in pairs. So
the digest is of the exact machine and workload, and a profile for the same target as one in the file takes its name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any, Final

from autotune.profiles.matching import compare_hardware, compare_software, compare_workloads
from autotune.profiles.schema import TunedProfile
from autotune.system.hardware import Hardware

GIB: Final = 2**30
MIN_DIGITS: Final = 8  # of the digest in a name; more where those are taken
MAX_DIGITS: Final = 64
GENERATED_NAME: Final = re.compile(r"(cpu|\S+x\d+)-[\d.]+c(-\d+[gm])?-[0-9a-f]{4,64}")  # shorter in earlier versions
ADVISORY_FIELDS: Final = {"cpu", "gpu_memory_bytes", "compute_capability", "pcie"}  # of the hardware
LATER_FIELDS: Final[dict[str, Any]] = {
    "is_loader": False,
    "split": None,
    "knobs": {},
    "main": None,
    "start_method": None,
    "ranks": 1,
    "cold": None,
    "local_world_size": 1,
}  # what they are in older files
NAME_IGNORED_FIELDS: Final = ("working_dir",)  # of the workload: the same code in another folder


def make_profile_name(profile: TunedProfile, digits: int = MIN_DIGITS) -> str:
    """Name a profile by accelerators, CPUs, memory and a digest of the rest, as in `h100x1-12c-64g-a41f09e2`."""
    target = {
        "hardware": profile.hardware.model_dump(exclude=ADVISORY_FIELDS),
        "start_method": profile.software.start_method,
        "workload": _leave_out_later(profile.workload.model_dump(exclude={"dataset_args", "kind"})),
        "request": _get_workload_request(profile),
    }
    digest = hashlib.sha256(json.dumps(target, sort_keys=True).encode()).hexdigest()[:digits]
    there = profile.hardware
    return f"{_describe_gpus(there)}-{there.usable_cpus:g}c-{_describe_memory(there.memory_limit_bytes)}-{digest}"


def resolve_profile_name(profile: TunedProfile, others: Iterable[TunedProfile]) -> TunedProfile:
    """Give a profile the name of the one in the file whose place it takes, or one of its own.

    It never takes the place of one that was named by hand, nor of one for another machine or workload.
    """
    others = tuple(others)
    same = [other.name for other in others if GENERATED_NAME.fullmatch(other.name) and is_same_target(other, profile)]
    taken = {other.name for other in others} - set(same)
    own = (make_profile_name(profile, digits) for digits in range(MIN_DIGITS, MAX_DIGITS + 1))
    free = next(name for name in own if name not in taken)
    return profile.model_copy(update={"name": free if free in same else next(iter([*same, free]))})


def is_same_target(there: TunedProfile, here: TunedProfile) -> bool:
    """Tell whether two profiles were tuned for the same workload, on machines that differ in nothing that decides."""
    differences = (
        *compare_hardware(there.hardware, here.hardware),
        *compare_software(there.software, here.software),
        *compare_workloads(there.workload, here.workload),
    )
    same_request = _get_workload_request(there) == _get_workload_request(here)
    return same_request and not any(difference.requires_retune for difference in differences)


def _get_workload_request(profile: TunedProfile) -> dict[str, Any]:
    """Give how the workload was asked for; its arguments alone where the profile does not hold the request."""
    asked = (profile.request or {}).get("workload")
    if not isinstance(asked, dict):
        return {"dataset_args": profile.workload.dataset_args}
    return _leave_out_later({name: value for name, value in asked.items() if name not in NAME_IGNORED_FIELDS})


def _leave_out_later(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out what earlier files lack, where it says no more than they do."""
    return {name: value for name, value in fields.items() if name not in LATER_FIELDS or value != LATER_FIELDS[name]}


def _describe_gpus(hardware: Hardware) -> str:
    if hardware.gpu is None:
        return "cpu"
    model = re.search(r"[A-Z]+\d\w*", hardware.gpu)
    slug = (model[0] if model else hardware.gpu.split()[-1]).lower()
    return f"{slug}x{hardware.gpu_count}"


def _describe_memory(size: int) -> str:
    """Write memory in whole GiB, as in `24g`; below one in MiB."""
    return f"{size / GIB:.0f}g" if size >= GIB else f"{size * 1024 / GIB:.0f}m"
