"""Compares a profile with the machine and workload at hand, selects one of a tuned file, and scales it down."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from autotune.config import DataLoaderSettings, LoaderConfig
from autotune.errors import ProfileError
from autotune.profiles.schema import TunedProfile, WorkloadIdentity
from autotune.profiles.store import read_file
from autotune.system.machine import Hardware, MachineProfile, Software, describe_local_hardware, read_machine
from autotune.units import format_bytes, format_seconds

DAY_SECONDS: Final = 86400.0
MAX_BYTES_CHANGE: Final = 0.02  # of memory or /dev/shm: a kernel update changes them by less
MAX_SAMPLE_SIZE_CHANGE: Final = 0.1  # augmentation and padding change the mean by less
MAX_LENGTH_CHANGE: Final = 0.5  # of the number of samples, which matters for short epochs only
MAX_SHM_SHARE: Final = 0.8  # of /dev/shm that batches may fill
MAX_MEMORY_SHARE: Final = 0.8
RESERVED_FILES: Final = 128  # open files of the process itself and of the batches in flight
MAX_FILES_PER_WORKER: Final = 8  # in the training process


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that has changed since a profile was tuned."""

    name: str
    was: str
    here: str
    requires_retune: bool = True  # else it is informational

    def __str__(self) -> str:
        return f"{self.name} {self.was} → {self.here}"


def _compare(
    name: str, was: Any, here: Any, *, retune: bool = True, tolerance: float = 0.0, write: Callable[[Any], str] = str
) -> list[Difference]:
    if was == here or (tolerance and abs(here - was) <= tolerance * was):
        return []
    return [Difference(name, "none" if was is None else write(was), "none" if here is None else write(here), retune)]


def compare_hardware(was: Hardware, here: Hardware) -> tuple[Difference, ...]:
    """List how this machine differs from the one that a profile was tuned on."""
    compare_size = partial(_compare, tolerance=MAX_BYTES_CHANGE, write=format_bytes)
    return (
        *_compare("GPU", was.gpu, here.gpu),
        *_compare("GPUs", was.gpu_count, here.gpu_count, retune=was.gpu == here.gpu),
        *_compare("CPUs", was.usable_cpus, here.usable_cpus, write="{:g}".format),
        *compare_size("memory", was.memory_limit_bytes, here.memory_limit_bytes),
        *compare_size("/dev/shm", was.shm_limit_bytes, here.shm_limit_bytes),
        *_compare("open files", was.nofile_limit, here.nofile_limit, write="{:,}".format),
        *_compare("processor", was.cpu, here.cpu, retune=False),
    )


def compare_software(was: Software, here: Software) -> tuple[Difference, ...]:
    """List the versions that differ; only the start method of workers requires retuning."""
    return (
        *_compare("torch", was.torch, here.torch, retune=False),
        *_compare("CUDA", was.cuda, here.cuda, retune=False),
        *_compare("Python", was.python, here.python, retune=False),
        *_compare("start method", was.start_method, here.start_method),
        *_compare("thread limits", was.thread_variables, here.thread_variables, retune=False, write=_format_variables),
    )


def _format_variables(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in variables.items()) or "none"


def compare_workloads(was: WorkloadIdentity, here: WorkloadIdentity) -> tuple[Difference, ...]:
    """List how the workload differs from the one that was tuned."""
    lengths = (was.samples or here.samples, here.samples or was.samples)  # one may be unknown
    return (
        *_compare("dataset", was.dataset, here.dataset),
        *_compare("split", was.split, here.split),
        *_compare("loader", was.loader_class or "DataLoader", here.loader_class or "DataLoader"),
        *_compare("step", was.step, here.step),
        *_compare(
            "sample size", was.sample_bytes, here.sample_bytes, tolerance=MAX_SAMPLE_SIZE_CHANGE, write=format_bytes
        ),
        *_compare("samples", *lengths, tolerance=MAX_LENGTH_CHANGE, write="{:,}".format),
    )


def compare_age(created_at: datetime, now: datetime, max_seconds: float | None) -> tuple[Difference, ...]:
    """Return a difference if a profile is older than allowed; None allows any age."""
    age = (now - created_at).total_seconds()
    if max_seconds is None or age <= max_seconds:
        return ()
    return (Difference("age", f"at most {_format_age(max_seconds)}", _format_age(age)),)


def _format_age(seconds: float) -> str:
    return f"{seconds / DAY_SECONDS:.0f} days" if seconds >= 2 * DAY_SECONDS else format_seconds(seconds)


def select_profile(
    path: Path, name: str | None = None, machine: MachineProfile | None = None, nproc_per_node: int | None = None
) -> TunedProfile:
    """Select the profile for the nearest machine, with this many training processes; of equals a validated, new one.

    Args:
        path: The tuned file.
        name: Id, label, workload, workload id or machine class of the profile.
        machine: The machine; None reads this one.
        nproc_per_node: Training processes on the host; None accepts any number.

    Raises:
        ProfileError: The file is not valid, has no such profile, or has profiles of several workloads to choose from.
    """
    profiles, here = read_file(path).profiles, machine or read_machine()
    if not profiles:
        raise ProfileError(f"{path} has no profiles. Tune with dltune --dataset pkg.mod:make_dataset.")
    named = [one for one in profiles if name is None or name in _list_names(one)]
    titles = _list_titles(named or profiles)
    if not named:
        raise ProfileError(f"{path} has no profile {name!r}; it has {', '.join(titles)}.")
    if len(titles) > 1:
        example = f"profile={json.dumps(titles[0])} or --profile {shlex.quote(titles[0])}"
        raise ProfileError(f"{path} has profiles of several workloads: {', '.join(titles)}. Name one with {example}.")

    def rank(profile: TunedProfile) -> tuple[Any, ...]:
        other_processes = nproc_per_node not in (None, profile.workload.nproc_per_node)
        distance = measure_distance(profile.hardware, describe_local_hardware(here, profile.hardware))
        return distance[0], other_processes, distance[1], not profile.is_validated, -profile.created_at.timestamp()

    return min(named, key=rank)


def _list_names(profile: TunedProfile) -> tuple[str | None, ...]:
    workload = profile.workload
    return profile.id, profile.label, workload.title, workload.dataset, profile.workload_id, profile.machine_class


def _list_titles(profiles: Iterable[TunedProfile]) -> list[str]:
    """Return a name for each workload; workloads that differ only in their arguments are named by their ids."""
    titles: dict[str, dict[str, str]] = {}
    for one in profiles:
        same = titles.setdefault(one.label or one.workload.title, {})
        same[json.dumps(one.workload.dataset_args, sort_keys=True)] = one.workload_id
    return [name for title, same in titles.items() for name in ([title] if len(same) == 1 else same.values())]


def measure_distance(there: Hardware, here: Hardware) -> tuple[bool, float]:
    """Return whether the accelerators differ, and by how many powers of two CPUs, memory and accelerators differ."""
    pairs = [(there.usable_cpus, here.usable_cpus), (there.gpu_count, here.gpu_count)]
    if abs(here.memory_limit_bytes - there.memory_limit_bytes) > MAX_BYTES_CHANGE * there.memory_limit_bytes:
        pairs.append((there.memory_limit_bytes, here.memory_limit_bytes))
    distances = (abs(math.log2(max(1e-4, was)) - math.log2(max(1e-4, now))) for was, now in pairs)
    return there.gpu != here.gpu, sum(distances) if there.machine_class != here.machine_class else 0.0


def clamp_config(profile: TunedProfile, here: MachineProfile, nproc_per_node: int = 1) -> LoaderConfig:
    """Return a profile's configuration, with fewer workers and batches if this machine has less for each process."""
    settings, there = profile.dataloader, profile.hardware
    workers, prefetch = settings.num_workers, settings.prefetch_factor or 1
    crowding = nproc_per_node / profile.workload.nproc_per_node  # processes per host, relative to tuning
    limits = [workers, math.ceil(workers * here.usable_cpus / crowding / there.usable_cpus)]
    if here.memory_limit_bytes / crowding < there.memory_limit_bytes and profile.result.peak_host_bytes:
        share = MAX_MEMORY_SHARE * here.memory_limit_bytes / nproc_per_node / profile.result.peak_host_bytes
        limits.append(int(workers * share))
    if here.nofile_limit < there.nofile_limit:
        limits.append((here.nofile_limit - RESERVED_FILES) // MAX_FILES_PER_WORKER)
    batch_bytes = profile.workload.sample_bytes * (settings.batch_size or profile.search.batch_samples)
    batches = workers * prefetch  # for /dev/shm, prefetched batches are reduced before workers
    if here.shm_limit_bytes / crowding < there.shm_limit_bytes and batch_bytes:
        in_shm = int(MAX_SHM_SHARE * here.shm_limit_bytes / nproc_per_node) // batch_bytes
        batches = min(batches, in_shm - 2)  # two more are in use
    workers = max(0, min(*limits, batches))
    if workers:
        changes = {"num_workers": workers, "prefetch_factor": min(prefetch, batches // workers)}
        clamped = settings.model_copy(update=changes)
    else:
        clamped = DataLoaderSettings(batch_size=settings.batch_size, pin_memory=settings.pin_memory)
    return profile.config.model_copy(update={"dataloader": clamped})
