"""The result of a training run as a profile of dltune.json, and the profile that the next run starts with."""

from __future__ import annotations

import itertools
import operator
import traceback
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.utils.data import SequentialSampler, Subset

from autotune.config import DataLoaderSettings, LoaderConfig, ProcessSettings
from autotune.online.controller import BUSY_CPU_SHARE, MIN_WAIT_SHARE, Controller
from autotune.online.group import WorkerSettings
from autotune.online.windows import Window
from autotune.profiles.schema import (
    COMPUTE_BOUND_WAIT_SHARE,
    MAX_SEARCHED_WORKERS,
    Baseline,
    Bottleneck,
    Budgets,
    Preparer,
    ProfileResult,
    SearchRecord,
    TrialSummary,
    TunedFile,
    TunedProfile,
    WorkloadIdentity,
)
from autotune.profiles.store import read_profiles, save_profile, update_file
from autotune.system.machine import Accelerator, Hardware, read_gpus, read_machine
from autotune.system.software import is_library, read_software

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

LOCK_SECONDS: Final = 1.0  # that training waits for the tuned file


class LoaderFacts(NamedTuple):
    """What a result has of a loader, which may no longer exist when the training ends."""

    workload: WorkloadIdentity
    batch_size: int | None
    pin_memory: bool
    persistent_workers: bool
    is_evaluation: bool = False  # whether a Trainer evaluates with it, whose arguments are for training, too


def is_shuffled(loader: DataLoader[Any]) -> bool:
    """Return whether the samples have another order than in the dataset."""
    sampler: Any = loader._index_sampler
    while (inner := getattr(sampler, "batch_sampler", getattr(sampler, "sampler", None))) is not None:
        sampler = inner
    return bool(getattr(sampler, "shuffle", not isinstance(sampler, SequentialSampler)))


def read_facts(loader: DataLoader[Any], processes: int) -> LoaderFacts:
    """Read the facts of a loader in one of several training processes: its dataset by its class, and the batch size."""
    dataset, size, calls = loader.dataset, _read_batch_size(loader), _list_library_calls()
    while type(dataset) is Subset:  # of `random_split`
        dataset = dataset.dataset
    cls = type(dataset)
    modules = {module for module, _ in calls}
    prepared_by: Preparer | None = "accelerate" if "accelerate.data_loader" in modules else None
    prepared_by = "transformers" if "transformers.trainer" in modules else prepared_by
    is_evaluation = ("transformers.trainer", "evaluation_loop") in calls
    length = None
    with suppress(Exception):  # a dataset whose sampler knows the length needs none
        length = len(loader.dataset)  # type: ignore[arg-type]
    workload = WorkloadIdentity(
        dataset=f"{cls.__module__}:{cls.__qualname__}",
        dataset_args={"batch_size": size, "samples": length, "shuffle": is_shuffled(loader)},
        samples=length,
        sample_bytes=0,
        step="training run",
        gives_loader=True,
        prepared_by=prepared_by,
        nproc_per_node=processes,
    )
    return LoaderFacts(workload, size, bool(loader.pin_memory), bool(loader.persistent_workers), is_evaluation)


class EarlierResult(NamedTuple):
    """What an earlier run ended with."""

    settings: WorkerSettings
    window: Window  # one second of it
    is_complete: bool  # whether it had tried all that it proposed, and could not propose more within today's limits


def find_start(path: Path, facts: LoaderFacts, own: WorkerSettings, most: int = 0) -> EarlierResult | None:
    """Find the result of an earlier run with this dataset and machine whose baseline has the user's settings.

    `most` are the workers that today's limits allow.
    """
    hardware = read_hardware(facts.workload.nproc_per_node)
    for one in read_profiles(path):
        base = one.result.baseline
        if _is_result(one, facts, hardware) and base is not None and read_settings(base.config.dataloader) == own:
            rate = one.result.samples_per_second / one.search.batch_samples
            window = Window(batches=rate, seconds=1.0, wait_seconds=one.result.wait_share)
            tried, limit = max(trial.dataloader.num_workers for trial in one.search.trials), one.budgets.max_workers
            was_limited = tried >= limit < most and window.wait_share > MIN_WAIT_SHARE
            is_complete = one.is_complete and not was_limited
            return EarlierResult(read_settings(one.dataloader), window, is_complete)
    return None


def read_settings(given: DataLoader[Any] | DataLoaderSettings) -> WorkerSettings:
    """Return the settings of a loader, or of a configuration, that the autopilot changes."""
    return WorkerSettings(given.num_workers, given.prefetch_factor or 2)


def remove_result(path: Path, facts: LoaderFacts) -> None:
    """Remove what this run or an earlier one converged to: its workers have failed."""
    hardware = read_hardware(facts.workload.nproc_per_node)

    def remove(stored: TunedFile) -> TunedFile:
        return TunedFile(profiles=tuple(one for one in stored.profiles if not _is_result(one, facts, hardware)))

    if any(_is_result(one, facts, hardware) for one in read_profiles(path)):
        update_file(path, remove, lock_seconds=LOCK_SECONDS)


def _is_result(profile: TunedProfile, facts: LoaderFacts, hardware: Hardware) -> bool:
    is_same = profile.workload.id == facts.workload.id and profile.hardware.is_like(hardware)
    return profile.is_from_training and is_same


def _list_library_calls() -> set[tuple[str | None, str]]:
    """List the modules and functions between the user's own code and this one."""
    frames = (frame for frame, _ in traceback.walk_stack(None))
    ours = itertools.takewhile(lambda frame: is_library(frame.f_code.co_filename), frames)
    return {(frame.f_globals.get("__name__"), frame.f_code.co_name) for frame in ours}


def read_hardware(processes: int = 1) -> Hardware:
    """Return the hardware that the training processes of this host share, with its accelerators."""
    gpus = read_gpus() if torch.backends.cuda.is_built() else ()  # torch would initialize CUDA, which workers inherit
    accelerator = Accelerator(name=gpus[0], count=gpus.count(gpus[0])) if gpus else None
    return read_machine().of_host(processes).hardware(accelerator)


def save_result(
    path: Path,
    facts: LoaderFacts,
    controller: Controller,
    seconds: float,
    *,
    is_complete: bool = True,
    most: int = MAX_SEARCHED_WORKERS,
    before: TunedProfile | None = None,
) -> TunedProfile | None:
    """Save what a training run converged to, or the best before its end; return it, or None without a final window.

    With several processes, the result with the most workers is kept. `most` are the workers that the limits allowed,
    and `before` is the result that this process has saved before.
    """
    final = controller.final_window
    if final is None:
        return None
    size, own = facts.batch_size or 1, controller.own_window
    config, machine = _configure(facts, controller.settings), read_machine()
    baseline = None
    if own is not None:
        baseline = Baseline(
            config=_configure(facts, controller.own),
            description="your settings" + " (predicted)" * (controller.own not in controller.windows),
            samples_per_second=own.rate * size,
            wait_share=own.wait_share,
            bottleneck=find_bottleneck(own, controller),
        )
    result = ProfileResult(
        samples_per_second=final.rate * size,
        epochs=1,
        baseline=baseline,
        speedup=controller.rate(final) / controller.rate(own) if own is not None else None,
        decision="no_change" if controller.settings == controller.own else "faster",
        upper_bound_samples_per_second=size / controller.costs.step if controller.costs is not None else None,
        wait_share=final.wait_share,
        bottleneck=find_bottleneck(final, controller),
    )
    trials = tuple(
        TrialSummary(
            number=number,
            status="completed",
            config=_configure(facts, settings),
            samples_per_second=window.rate * size,
        )
        for number, (settings, window) in enumerate(controller.windows.items(), start=1)
    )
    limits = Budgets(
        memory_bytes=machine.memory_available_bytes,
        shm_bytes=machine.shm_free_bytes,
        nofile=machine.nofile_limit,
        max_workers=most,
    )
    hardware, now = read_hardware(facts.workload.nproc_per_node), datetime.now(UTC).replace(microsecond=0)
    profile = TunedProfile(
        config=config,
        hardware=hardware,
        software=read_software(),
        workload=facts.workload,
        result=result,
        budgets=limits,
        search=SearchRecord(
            trials=trials,
            sampler="training",
            seconds=seconds,
            stop_reason="measured in a training run",
            batch_samples=size,
        ),
        created_at=now,
        is_complete=is_complete,
    )

    def is_better(stored: TunedProfile) -> bool:
        is_of_another = facts.workload.nproc_per_node > 1 and stored != before and _is_result(stored, facts, hardware)
        is_recent = stored.created_at >= now - timedelta(seconds=seconds)
        found, ours = ((one.is_complete, one.dataloader.num_workers) for one in (stored, profile))
        return is_of_another and is_recent and found > ours

    save_profile(path, profile, lock_seconds=LOCK_SECONDS, is_better=is_better)
    return profile


def _read_batch_size(loader: DataLoader[Any]) -> int | None:
    """Return the batch size of a loader; accelerate and transformers give it a batch sampler, which has it."""
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    with suppress(TypeError):  # a sampler of the user's own may have several
        return max(1, operator.index(size))  # type: ignore[arg-type]
    return None


def _configure(facts: LoaderFacts, settings: WorkerSettings) -> LoaderConfig:
    """Return the user's settings with other workers."""
    has_workers = settings.workers > 0
    return LoaderConfig(
        dataloader=DataLoaderSettings(
            batch_size=facts.batch_size,
            num_workers=settings.workers,
            prefetch_factor=settings.prefetch if has_workers else None,
            pin_memory=facts.pin_memory,
            persistent_workers=facts.persistent_workers and has_workers,
        ),
        process=ProcessSettings(non_blocking=facts.pin_memory),
    )


def find_bottleneck(window: Window, controller: Controller) -> Bottleneck:
    """Return what limits a window: the step, the CPUs that load, or the time that samples wait."""
    if window.wait_share < COMPUTE_BOUND_WAIT_SHARE:
        return "step"
    costs, is_busy = controller.costs, window.busy_cpus > BUSY_CPU_SHARE * controller.cpus
    return "cpu" if is_busy or (costs is not None and costs.worker_cpu >= costs.waiting) else "io"
