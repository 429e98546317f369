"""Loads the profile for this machine into training code, without importing torch or the code that a profile names."""

from __future__ import annotations

import json
import math
import os
import shlex
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, get_args

from autotune.config import DataLoaderSettings, FrozenModel, LoaderConfig
from autotune.errors import ProfileError, UsageError
from autotune.profiles.export import Library, translate
from autotune.profiles.loaders import (
    NEEDS_WORKERS,
    choose_arguments,
    find_inner_loaders,
    list_kept,
    make_worker_init,
    replace_loader,
)
from autotune.profiles.schema import TunedProfile
from autotune.profiles.store import read_file
from autotune.request import Workload
from autotune.settings import SETTINGS
from autotune.system.machine import Hardware, MachineProfile, describe_local_hardware, read_machine
from autotune.system.software import read_local_world_size, read_start_method_in_force, read_torch
from autotune.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from torch.utils.data import DataLoader, Dataset

OnMismatch = Literal["warn", "error", "default"]
Target = TypeVar("Target")
MAX_BYTES_CHANGE: Final = 0.02  # of memory or /dev/shm: a kernel update changes them by less
MAX_SHARE: Final = 0.8  # of memory or /dev/shm that loaders may fill
MAX_CLOCK_ERROR_SECONDS: Final = 3600.0  # between the clocks of two machines
RESERVED_FILES: Final = 128  # open files of the process itself and of the batches in flight
MAX_FILES_PER_WORKER: Final = 8  # in the training process
MAX_NAME_LENGTH: Final = 80  # characters of a workload with the arguments that distinguish it


class Difference(NamedTuple):
    """Something that has changed since a profile was tuned, such as `CPUs 8 → 4`."""

    text: str
    requires_retune: bool = True  # else it is informational


_COMPARED: Final[dict[str, tuple[str, float | None]]] = {
    "gpu": ("GPU", 0.0),
    "gpu_count": ("GPUs", 0.0),
    "usable_cpus": ("CPUs", 0.0),
    "memory_limit_bytes": ("memory", MAX_BYTES_CHANGE),
    "shm_limit_bytes": ("/dev/shm", MAX_BYTES_CHANGE),
    "nofile_limit": ("open files", 0.0),
    "cpu": ("processor", None),
    "torch": ("torch", None),
    "cuda": ("CUDA", None),
    "python": ("Python", None),
    "start_method": ("start method", 0.0),
    "dataset": ("dataset", 0.0),
    "split": ("split", 0.0),
    "loader_class": ("loader class", 0.0),
    "step": ("step", 0.0),
    "sample_bytes": ("sample size", 0.1),  # augmentation changes the mean by less
    "samples": ("samples", 0.5),  # they matter for short epochs only
}  # names of fields, and the relative change from which they require retuning; None if they never do


def compare(*pairs: tuple[FrozenModel, FrozenModel]) -> list[Difference]:
    """List how hardware, software or workload differ from the first of each pair, with which a profile was tuned."""
    found = []
    for was, here in pairs:
        for field in filter(type(was).model_fields.__contains__, _COMPARED):
            (name, tolerance), old, new = _COMPARED[field], getattr(was, field), getattr(here, field)
            is_unknown = tolerance and None in (old, new)  # the length of an iterable dataset
            errors = sum(getattr(one, f"{field}_error", 0) for one in (was, here))  # then the intervals overlap
            if old != new and not is_unknown and not (tolerance and abs(new - old) <= tolerance * old + errors):
                text = f"{name} {_write(field, old)} → {_write(field, new)}"
                found.append(Difference(text, requires_retune=tolerance is not None))
    return found


def _write(field: str, value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or "none"
    return format_bytes(value) if field.endswith("_bytes") else f"{value:,}" if isinstance(value, int) else f"{value:g}"


def compare_age(created_at: datetime, now: datetime, max_seconds: float | None) -> list[Difference]:
    """Return a difference if a profile is older than allowed, or of the future; None allows any age."""
    age = (now - created_at).total_seconds()
    if max_seconds is None or -MAX_CLOCK_ERROR_SECONDS <= age <= max_seconds:
        return []
    if age < 0:
        return [Difference(f"created at {created_at:%Y-%m-%d %H:%M}, which is in the future: check the clock")]
    excess = format_seconds(age - max_seconds)
    return [Difference(f"age {format_seconds(age)}: {excess} more than {format_seconds(max_seconds)}")]


def select_profile(
    path: Path, name: str | None = None, machine: MachineProfile | None = None, nproc_per_node: int | None = None
) -> TunedProfile:
    """Select the profile for the nearest machine, with this many training processes; of equals a validated, new one.

    `name` is the id, label, workload, workload id or machine class of the profile. Results of training runs are ignored
    if there is a tuned profile.

    Raises:
        ProfileError: The file is not valid, has no such profile, or has profiles of several workloads to choose from.
    """
    profiles, here = read_file(path).profiles, machine or read_machine()
    if not profiles:
        raise ProfileError(f"{path} has no profiles. Tune with dltune --dataset pkg.mod:make_dataset.")
    names = name_workloads(profiles)
    same = {one: {title, *ids} for title, ids in names.items() for one in ids}

    def list_names(one: TunedProfile) -> set[str | None]:
        workload = one.workload
        return {None, one.id, one.label, workload.title, workload.dataset, one.machine_class, *same[one.workload_id]}

    named = [one for one in profiles if name in list_names(one)]
    if name is not None:  # a label or title rather than a dataset that several workloads have
        named = [one for one in named if name == (one.label or one.workload.title)] or named
    named = [one for one in named if not one.is_from_training] or named
    titles = [title for title, ids in names.items() if any(one.workload_id in ids for one in named or profiles)]
    if not named:
        raise ProfileError(f"{path} has no profile {name!r}; it has {', '.join(titles)}.")
    if len(titles) > 1:
        example = f"profile={json.dumps(titles[0], ensure_ascii=False)} or --profile {shlex.quote(titles[0])}"
        raise ProfileError(
            f"{path} has profiles of several workloads: {', '.join(titles)}. Name one with {example}; "
            "dltune show lists them."
        )

    def rank(profile: TunedProfile) -> tuple[Any, ...]:
        other_processes = nproc_per_node not in (None, profile.workload.nproc_per_node)
        other_gpu, distance = measure_distance(profile.hardware, describe_here(profile, here))
        return other_gpu, other_processes, distance, not profile.is_validated, -profile.created_at.timestamp()

    return min(named, key=rank)


def describe_here(profile: TunedProfile, machine: MachineProfile) -> Hardware:
    """Return the hardware of this machine, to compare with that of a profile.

    It has no GPU if the profile was tuned for CPUs, or without a GPU and torch has no CUDA here.
    """
    workload = profile.request.get("workload")  # of any type: a hand-written request is validated before it is repeated
    is_for_cpu = isinstance(workload, dict) and str(workload.get("device")).partition(":")[0] == "cpu"
    if profile.hardware.gpu is None and (torch := read_torch()) is not None:
        is_for_cpu |= torch.cuda is None
    return describe_local_hardware(machine, profile.hardware, gpus=() if is_for_cpu else None)


def name_workloads(profiles: Iterable[TunedProfile]) -> dict[str, set[str]]:
    """Return the ids of each workload by its name: its label, or its dataset with the arguments and step that differ.

    A workload has several ids if it was tuned for several numbers of processes. One of them is its name if the
    arguments are long.
    """
    titles: dict[str, dict[str, tuple[list[str], set[str]]]] = {}
    for one in profiles:
        values = {} if one.label else {**one.workload.dataset_args, "step": one.workload.step}
        texts = [f"{name}={value!r}" for name, value in values.items()]
        key = one.label or json.dumps([one.workload.dataset_args, one.workload.step], sort_keys=True)
        same = titles.setdefault(one.label or one.workload.title, {})
        same.setdefault(key, (texts, set()))[1].add(one.workload_id)
    found = dict[str, set[str]]()
    for title, same in titles.items():
        for texts, ids in same.values():
            differing = [text for text in texts if any(text not in others for others, _ in same.values())]
            name = f"{title}({', '.join(differing)})"
            name = name if len(name) <= MAX_NAME_LENGTH and name not in {*found, *titles} else max(ids)
            found[title if len(same) == 1 else name] = ids
    return found


def measure_distance(there: Hardware, here: Hardware) -> tuple[bool, float]:
    """Return whether the accelerators differ, and by how many powers of two CPUs, memory and accelerators differ."""
    pairs = [(there.usable_cpus, here.usable_cpus), (there.gpu_count, here.gpu_count)]
    if abs(here.memory_limit_bytes - there.memory_limit_bytes) > MAX_BYTES_CHANGE * there.memory_limit_bytes:
        pairs.append((there.memory_limit_bytes, here.memory_limit_bytes))
    distances = (abs(math.log2(max(1e-4, was)) - math.log2(max(1e-4, now))) for was, now in pairs)
    return there.gpu != here.gpu, sum(distances) if there.machine_class != here.machine_class else 0.0


def scale_down(profile: TunedProfile, here: MachineProfile, nproc_per_node: int = 1) -> LoaderConfig:
    """Return a profile's configuration, with fewer workers and batches if this machine has less for each process."""
    settings, there = profile.dataloader, profile.hardware
    workers, prefetch = settings.num_workers, settings.prefetch_factor or 1
    crowding = nproc_per_node / profile.workload.nproc_per_node  # processes per host, relative to tuning
    limits = [workers, math.ceil(workers * here.usable_cpus / crowding / there.usable_cpus)]
    if here.memory_limit_bytes / crowding < there.memory_limit_bytes and profile.result.peak_host_bytes:
        share = MAX_SHARE * here.memory_limit_bytes / nproc_per_node / profile.result.peak_host_bytes
        limits.append(int(workers * share))
    if here.nofile_limit < there.nofile_limit:
        limits.append((here.nofile_limit - RESERVED_FILES) // MAX_FILES_PER_WORKER)
    batch_bytes = profile.workload.sample_bytes * (settings.batch_size or profile.search.batch_samples)
    batches = workers * prefetch  # for /dev/shm, prefetched batches are reduced before workers
    if here.shm_limit_bytes / crowding < there.shm_limit_bytes and batch_bytes:
        in_shm = int(MAX_SHARE * here.shm_limit_bytes / nproc_per_node) // batch_bytes
        batches = min(batches, in_shm - 2)  # two more are in use
    workers = min(*limits, batches)
    scaled_down = DataLoaderSettings(batch_size=settings.batch_size, pin_memory=settings.pin_memory)
    if workers > 0:
        changes = {"num_workers": workers, "prefetch_factor": min(prefetch, batches // workers)}
        scaled_down = settings.model_copy(update=changes)
    return profile.config.model_copy(update={"dataloader": scaled_down})


@dataclass(frozen=True, repr=False, eq=False)
class TunedLoader:
    """A tuned configuration for this machine."""

    profile: TunedProfile
    config: LoaderConfig  # of the profile, scaled down if this machine has less
    fit: Literal["exact", "scaled_down", "default"] = "exact"  # `scaled_down` to this machine, or PyTorch's defaults

    def __repr__(self) -> str:
        return f"TunedLoader(profile={self.profile.id!r}, fit={self.fit!r}, {self.loader_kwargs()})"

    def loader_kwargs(self) -> dict[str, Any]:
        """Return the arguments for `torch.utils.data.DataLoader`, besides `dataset`, `shuffle` and others.

        `batch_size` is absent if the workload makes its own batches, as are settings that the user's loader rejects.
        """
        return self.profile.workload.accepted(self.config.loader_kwargs())

    def kwargs_for(self, library: Library) -> dict[str, Any]:
        """Return the arguments for a library that makes the loader itself; warns about unsupported settings.

        Args:
            library: `hf` for `transformers.TrainingArguments`, `accelerate` for its `DataLoaderConfiguration` (make the
                loader with `make_loader`), `timm` for `timm.data.create_loader`, `lightning` for a LightningDataModule
                that takes arguments of DataLoader, `statefuldataloader` for torchdata's StatefulDataLoader.
        """
        arguments, notes = translate(self.profile.workload, self.config, library)
        for note in notes:
            warnings.warn(note, stacklevel=2)
        return arguments

    def apply_process_settings(self) -> None:
        """Set the tuned sharing strategy. Call it before workers start."""
        if (strategy := self.config.process.sharing_strategy) != SETTINGS["sharing_strategy"].default:
            from torch.multiprocessing import set_sharing_strategy

            set_sharing_strategy(strategy)

    def make_loader(self, source: Dataset[Any] | Callable[..., Any], **own: Any) -> Any:
        """Make the loader, and apply the process settings.

        Args:
            source: The dataset; or a loader class, or a function of DataLoader settings that returns a loader.
            **own: Further arguments (`shuffle`, `collate_fn`, ...), which replace the tuned ones.

        Raises:
            UsageError: The profile has no batch size, and neither `batch_size` nor `batch_sampler` is given; or the
                source is a loader, or a function that returns none.
        """
        from torch.utils.data import DataLoader, Dataset

        _check_source(source, self.profile.workload.loader_class)
        self.apply_process_settings()
        kwargs = self.loader_kwargs() | own
        if own.get("batch_sampler") is not None and "batch_size" not in own:
            kwargs.pop("batch_size", None)
        workers = kwargs.get("num_workers", self.config.dataloader.num_workers)
        if workers == 0:
            kwargs = {name: value for name, value in kwargs.items() if name in own or name not in NEEDS_WORKERS}
        elif workers:
            method = kwargs.get("multiprocessing_context") or read_start_method_in_force()
            init = make_worker_init(self.config.process, own.get("worker_init_fn"), are_forked=method == "fork")
            kwargs |= {} if init is None else {"worker_init_fn": init}
        dropped: dict[str, Any] = {}
        is_measured = "num_workers" not in own and self.fit == "exact"  # more workers than CPUs may be faster
        with warnings.catch_warnings():
            if is_measured:
                warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
            if callable(source) and not isinstance(source, Dataset):
                accepted = choose_arguments(source, kwargs)
                loader = source(**own | accepted)
                is_loader = not isinstance(loader, Dataset) or "num_workers" in accepted  # as one of webdataset
                if isinstance(loader, Workload) or not is_loader:
                    kind = type(loader).__name__
                    raise UsageError(f"{_name(source)} returns a {kind}, not a loader: pass the dataset itself.")
                dropped = {one: kwargs[one] for one in kwargs.keys() - accepted.keys() - own.keys()}
                if "worker_init_fn" in kwargs.keys() - accepted.keys():
                    dropped["worker_threads"] = self.config.process.worker_threads
            elif {"batch_size", "batch_sampler"} & kwargs.keys():
                loader = DataLoader(source, **kwargs)
            else:
                raise UsageError(f"Profile {self.profile.id} has no batch size: pass batch_size or batch_sampler.")
        values = {name: dropped.get(name, setting.default) for name, setting in SETTINGS.items()}
        if lost := [f"{name}={value!r}" for name, value in values.items() if value != SETTINGS[name].default]:
            text = f"{_name(source)} does not accept these tuned settings, which are not used: {', '.join(lost)}."
            warnings.warn(text, stacklevel=2)
        if is_measured and isinstance(loader, DataLoader):
            loader.check_worker_number_rationality = accept_workers  # type: ignore[method-assign]  # called at each start
        return loader

    def apply_to(self, target: Target, **own: Any) -> Target:
        """Return a loader like the given one with the tuned settings; all other arguments are unchanged.

        Args:
            target: A DataLoader; or a Lightning module or data module, whose `train_dataloader` is tuned from now on.
            **own: Further arguments of DataLoader, which replace the tuned ones.

        Raises:
            UsageError: It is neither, or its class has a constructor of its own.
        """
        make: Any = getattr(target, "train_dataloader", None)
        if not callable(make):
            return self._replace(own, lambda: target)  # type: ignore[no-any-return]  # as it was given
        if self.config.process.device_prefetch:
            warnings.warn(f"device_prefetch=True: {SETTINGS['device_prefetch'].instruction}.", stacklevel=2)
        target.train_dataloader = partial(self._replace, own, make)  # type: ignore[attr-defined]  # it has one
        return target

    def _replace(self, own: dict[str, Any], make: Callable[[], Any]) -> Any:
        def rebuild(loader: DataLoader[Any]) -> Any:
            return self.make_loader(type(loader), **list_kept(loader, self.loader_kwargs(), own) | own)

        return replace_loader(make(), self.profile.workload.split, rebuild)


def _check_source(source: Any, tuned: str | None) -> None:
    """Raise UsageError for what neither is a dataset nor makes a loader; warn if `tuned` is another kind of loader."""
    from torch.utils.data import DataLoader, Dataset

    if isinstance(source, DataLoader):
        raise UsageError("make_loader takes a dataset; pass a DataLoader to apply_to.")
    is_dataset = isinstance(source, Dataset) or not callable(source) or hasattr(type(source), "__iter__")
    if is_dataset and (names := find_inner_loaders(source)):
        kind = f"{type(source).__name__} contains a DataLoader: {', '.join(names)}"
        raise UsageError(f"{kind}. Pass the function that makes it, and takes the arguments of DataLoader.")
    if source is None or isinstance(source, str | Workload):
        raise UsageError(f"make_loader takes a dataset, or a function that makes the loader, not {source!r:.50}.")
    if tuned is not None and ":" not in tuned and is_dataset:  # a function may return a plain DataLoader
        made = f"make_loader({type(source).__name__}) makes a plain DataLoader"
        warnings.warn(f"{made}, but {tuned} was tuned: pass that class instead.", stacklevel=3)


def _name(source: Any) -> str:
    made_of = getattr(source, "func", source)  # of functools.partial
    return getattr(made_of, "__qualname__", type(made_of).__name__)


def accept_workers() -> None:
    """Accept a number of workers that was measured, in place of torch's check, which compares it with the CPUs."""


def load(
    path: str | os.PathLike[str] = "dltune.json",
    *,
    profile: str | None = None,
    on_mismatch: OnMismatch = "warn",
    nproc_per_node: int | None = None,
) -> TunedLoader:
    """Load the tuned configuration for this machine.

    Args:
        path: The tuned file.
        profile: Name of the workload such as `data:make_dataset`, or id or label of a profile; needed if the file has
            profiles of several workloads.
        on_mismatch: If no profile was tuned on this class of machine, `warn` takes the nearest one, scales it down to
            this machine and warns, `error` raises, `default` returns PyTorch's defaults.
        nproc_per_node: Training processes on this host; None reads the variables of torchrun, Slurm, MPI and others.

    Raises:
        ProfileError: The file is not valid, has no such profile, or has several workloads; or no profile was tuned on
            this class of machine and `on_mismatch` is `error`.
        UsageError: `on_mismatch` or `nproc_per_node` has no valid value.
    """
    if on_mismatch not in get_args(OnMismatch):
        raise UsageError(f"on_mismatch={on_mismatch!r} is not one of {', '.join(get_args(OnMismatch))}.")
    processes = read_local_world_size() if nproc_per_node is None else nproc_per_node
    if processes < 1:
        raise UsageError(f"nproc_per_node={processes} must be at least 1.")
    machine = read_machine().of_host(processes)
    found = select_profile(Path(path), profile, machine, processes)
    here, scaled_down = describe_here(found, machine), scale_down(found, machine, processes)
    is_exact = measure_distance(found.hardware, here) == (False, 0) and found.workload.nproc_per_node == processes
    if is_exact and scaled_down == found.config:
        return TunedLoader(found, found.config)
    reasons, tuned_for = [], found.workload.nproc_per_node
    if tuned_for != processes:
        count = "one training process" if tuned_for == 1 else f"{tuned_for} training processes"
        reasons.append(f"for {count} on the host, not for {processes}")
    if changed := [one.text for one in compare((found.hardware, here)) if one.requires_retune]:
        reasons.append(f"on another machine: {', '.join(changed)}")
    mismatch = " and ".join(reasons) or "with slightly more memory"
    if on_mismatch == "error":
        raise ProfileError(f"{path}: profile {found.id} was tuned {mismatch}. Retune here.")
    if on_mismatch == "default":
        plain = LoaderConfig(dataloader=DataLoaderSettings(batch_size=found.dataloader.batch_size))
        return TunedLoader(found, plain, "default")
    tuned = TunedLoader(found, scaled_down, "scaled_down")
    warnings.warn(f"{path}: profile {found.id} was tuned {mismatch}. Using {tuned.loader_kwargs()}.", stacklevel=2)
    return tuned
