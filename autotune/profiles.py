"""Reads and writes dltune.json, and picks the profile that fits the machine it is read on.

Loading never imports the module a profile names, and needs neither torch nor optuna nor click.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from pydantic import ValidationError

from autotune.errors import OutputError, ProfileError
from autotune.machine import MachineProfile, count_whole_cpus, read_gpus, read_machine
from autotune.schema import SCHEMA_VERSION, DataLoaderSettings, LoaderConfig, TunedConfig, TunedFile
from autotune.units import format_bytes
from autotune.worker_setup import WorkerSetup

if TYPE_CHECKING:
    from torch.utils.data import DataLoader, Dataset

LOCK_SECONDS: Final = 30.0
SHM_SHARE: Final = 0.8  # of /dev/shm that a clamped configuration may fill
WORKERS_ONLY: Final = ("prefetch_factor", "persistent_workers", "in_order", "multiprocessing_context")
OnMismatch = Literal["warn", "error", "default"]


class TunedLoader:
    """A tuned configuration that fits this machine, ready for training code.

    Attributes:
        profile: The profile it was taken from.
        config: Its configuration, perhaps clamped to what this machine allows.
        fit: `exact`, `compatible`, `clamped`, or `default` when PyTorch's defaults stand in.
    """

    def __init__(self, profile: TunedConfig, config: LoaderConfig, fit: str) -> None:
        self.profile = profile
        self.config = config
        self.fit = fit

    def __repr__(self) -> str:
        return f"TunedLoader(profile={self.profile.name!r}, fit={self.fit!r}, {self.loader_kwargs()})"

    def loader_kwargs(self) -> dict[str, Any]:
        """Give the arguments for `torch.utils.data.DataLoader`.

        Returns:
            Keyword arguments in a combination that DataLoader accepts, to be given beside `dataset` and
            `shuffle`, `sampler`, `drop_last` or `collate_fn`. Without `batch_size` where the workload makes its
            own batches.
        """
        return self.config.loader_kwargs()

    def apply_process_settings(self) -> None:
        """Put the sharing strategy in force; call it before the first worker starts."""
        from torch.multiprocessing import set_sharing_strategy

        set_sharing_strategy(self.config.process.sharing_strategy)

    def make_loader(self, dataset: Dataset[Any], **own: Any) -> DataLoader[Any]:
        """Build the loader, with the process settings applied.

        Args:
            dataset: The dataset to load.
            **own: Further arguments of DataLoader (`shuffle`, `collate_fn`, ...); they win over the tuned ones.

        Returns:
            A DataLoader.
        """
        import multiprocessing

        from torch.utils.data import DataLoader

        self.apply_process_settings()
        kwargs = self.loader_kwargs() | own
        if own.get("batch_sampler") is not None and "batch_size" not in own:
            kwargs.pop("batch_size", None)
        if kwargs["num_workers"] == 0:
            kwargs = {name: value for name, value in kwargs.items() if name in own or name not in WORKERS_ONLY}
        method = kwargs.get("multiprocessing_context") or multiprocessing.get_start_method()
        if kwargs["num_workers"] and method != "fork":
            kwargs["worker_init_fn"] = WorkerSetup(self.config.process.sharing_strategy, own.get("worker_init_fn"))
        return DataLoader(dataset, **kwargs)


def load(
    path: str | os.PathLike[str] = "dltune.json", *, profile: str | None = None, on_mismatch: OnMismatch = "warn"
) -> TunedLoader:
    """Load the tuned configuration that fits this machine.

    Args:
        path: The tuned file.
        profile: Name of a profile; None takes the one that fits best, the newest of equals.
        on_mismatch: What to do when no profile was tuned for a machine like this: `warn` clamps the nearest
            one to what this machine allows and warns, `error` refuses, `default` gives PyTorch's defaults.

    Returns:
        The configuration.

    Raises:
        ProfileError: The file cannot be read or is not valid, has no such profile, or fits no machine like
            this while `on_mismatch` is `error`.
    """
    if on_mismatch not in get_args(OnMismatch):
        raise ProfileError(f"on_mismatch={on_mismatch!r} is none of {', '.join(get_args(OnMismatch))}.")
    tuned = _choose_named(read_file(Path(path)), profile, path)
    machine, gpus = read_machine(), read_gpus()
    found = _find_fitting(tuned, machine, gpus)
    if found is not None:
        best, fit = found
        return TunedLoader(best, best.config, fit)
    nearest = max(tuned, key=lambda candidate: (_has_gpu(candidate, gpus), candidate.created_at))
    differences = _describe_differences(nearest, machine, gpus)
    if on_mismatch == "error":
        raise ProfileError(f"{path}: profile {nearest.name} was tuned on another machine: {differences}. Retune here.")
    if on_mismatch == "default":
        plain = LoaderConfig(dataloader=DataLoaderSettings(batch_size=nearest.dataloader.batch_size))
        return TunedLoader(nearest, plain, "default")
    clamped = clamp_config(nearest, machine)
    warnings.warn(
        f"{path}: profile {nearest.name} was tuned on another machine: {differences}. "
        f"Using {clamped.loader_kwargs()}; retune here for the best.",
        stacklevel=2,
    )
    return TunedLoader(nearest, clamped, "clamped")


def choose_profile(path: Path, name: str | None = None) -> TunedConfig:
    """Choose one profile of a tuned file, as it was tuned.

    Args:
        path: The tuned file.
        name: Name of the profile; None takes the only one, or else the one that fits this machine.

    Returns:
        The profile, whether or not it fits this machine.

    Raises:
        ProfileError: The file cannot be read or is not valid, has no such profile, or several and none that fits.
    """
    tuned = _choose_named(read_file(path), name, path)
    if len(tuned) == 1:
        return tuned[0]
    found = _find_fitting(tuned, read_machine(), read_gpus())
    if found is None:
        known = ", ".join(profile.name for profile in tuned)
        raise ProfileError(f"{path} holds {known}; none was tuned for a machine like this. Name one with --profile.")
    return found[0]


def _find_fitting(
    tuned: list[TunedConfig], machine: MachineProfile, gpus: tuple[str, ...]
) -> tuple[TunedConfig, str] | None:
    """Find the newest profile of a machine like this, else of a smaller one, and say which of them it is."""
    for fits, name in ((_is_exact, "exact"), (_is_compatible, "compatible")):
        fitting = [candidate for candidate in tuned if fits(candidate, machine, gpus)]
        if fitting:
            return max(fitting, key=lambda candidate: candidate.created_at), name
    return None


def _choose_named(file: TunedFile, name: str | None, path: str | os.PathLike[str]) -> list[TunedConfig]:
    named = [profile for profile in file.profiles if name is None or profile.name == name]
    if named:
        return named
    if not file.profiles:
        raise ProfileError(f"{path} holds no profile. Write one with dltune --dataset pkg.mod:make_ds.")
    known = ", ".join(profile.name for profile in file.profiles)
    raise ProfileError(f"{path} holds no profile named {name!r}; it holds {known}.")


def _has_gpu(profile: TunedConfig, gpus: tuple[str, ...]) -> bool:
    wanted = profile.hardware.gpu
    return not gpus if wanted is None else wanted in gpus


def _is_exact(profile: TunedConfig, machine: MachineProfile, gpus: tuple[str, ...]) -> bool:
    there = profile.hardware
    return (
        _has_gpu(profile, gpus)
        and there.gpu_count == len(gpus)
        and there.cpu == machine.cpu
        and there.usable_cpus == machine.usable_cpus
        and there.memory_limit_bytes == machine.memory_limit_bytes
        and there.shm_limit_bytes == machine.shm_limit_bytes
        and there.nofile_limit == machine.nofile_limit
    )


def _is_compatible(profile: TunedConfig, machine: MachineProfile, gpus: tuple[str, ...]) -> bool:
    there = profile.hardware
    return (
        _has_gpu(profile, gpus)
        and machine.usable_cpus >= there.usable_cpus
        and machine.memory_limit_bytes >= there.memory_limit_bytes
        and machine.shm_limit_bytes >= there.shm_limit_bytes
        and machine.nofile_limit >= there.nofile_limit
    )


def _describe_differences(profile: TunedConfig, machine: MachineProfile, gpus: tuple[str, ...]) -> str:
    there = profile.hardware
    here_gpu = gpus[0] if gpus else "no GPU"
    pairs = (
        ("GPU", there.gpu or "no GPU", here_gpu, not _has_gpu(profile, gpus)),
        ("CPUs", f"{there.usable_cpus:g}", f"{machine.usable_cpus:g}", machine.usable_cpus < there.usable_cpus),
        (
            "memory",
            format_bytes(there.memory_limit_bytes),
            format_bytes(machine.memory_limit_bytes),
            machine.memory_limit_bytes < there.memory_limit_bytes,
        ),
        (
            "/dev/shm",
            format_bytes(there.shm_limit_bytes),
            format_bytes(machine.shm_limit_bytes),
            machine.shm_limit_bytes < there.shm_limit_bytes,
        ),
        ("open files", there.nofile_limit, machine.nofile_limit, machine.nofile_limit < there.nofile_limit),
    )
    return ", ".join(f"{name} {here} instead of {was}" for name, was, here, differs in pairs if differs)


def clamp_config(profile: TunedConfig, machine: MachineProfile) -> LoaderConfig:
    """Reduce a configuration to what a smaller machine can bear.

    Args:
        profile: A profile tuned elsewhere.
        machine: This machine.

    Returns:
        The configuration with at most as many workers as usable CPUs, and with fewer batches ahead, then fewer
        workers, until they fit into /dev/shm.
    """
    settings = profile.dataloader
    workers = min(settings.num_workers, count_whole_cpus(machine.usable_cpus))
    prefetch = settings.prefetch_factor or 1
    batch_bytes = profile.workload.sample_bytes * (settings.batch_size or 1)
    room = machine.shm_limit_bytes * SHM_SHARE

    while workers and (workers * prefetch + 2) * batch_bytes > room:
        workers, prefetch = (workers, prefetch - 1) if prefetch > 1 else (workers - 1, 1)
    keeps = {"prefetch_factor": prefetch, "persistent_workers": settings.persistent_workers}
    clamped = DataLoaderSettings(
        batch_size=settings.batch_size,
        num_workers=workers,
        pin_memory=settings.pin_memory,
        **(keeps | {"in_order": settings.in_order} if workers else {}),
    )
    return LoaderConfig(dataloader=clamped, process=profile.process)


def read_file(path: Path) -> TunedFile:
    """Read and validate a tuned file.

    Args:
        path: Where it is.

    Returns:
        The file; fields that this version does not know are ignored with a warning.

    Raises:
        ProfileError: It cannot be read, is not JSON, is of another schema version, or is not valid.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror}.") from None
    try:
        return TunedFile.model_validate_json(text)
    except ValidationError as error:
        return _read_despite(error, text, path)


def _read_despite(error: ValidationError, text: bytes, path: Path) -> TunedFile:
    """Read a file again without the fields that are unknown, when nothing else is wrong with it."""
    problems = error.errors(include_url=False)
    unknown = [problem["loc"] for problem in problems if problem["type"] == "extra_forbidden"]
    if not unknown or len(unknown) < len(problems):
        raise ProfileError(f"{path} is not a tuned file of schema {SCHEMA_VERSION}: {_summarize(problems)}") from None
    import json

    document = json.loads(text)
    for place in unknown:
        _drop(document, place)
    warnings.warn(f"{path}: ignored unknown fields {', '.join(_join(place) for place in unknown)}", stacklevel=4)
    try:
        return TunedFile.model_validate(document)
    except ValidationError as other:
        raise ProfileError(f"{path} is not a tuned file: {_summarize(other.errors(include_url=False))}") from None


def _drop(document: Any, place: tuple[int | str, ...]) -> None:
    for step in place[:-1]:
        document = document[step]
    del document[place[-1]]


def _join(place: tuple[int | str, ...]) -> str:
    return ".".join(str(step) for step in place) or "the whole"


def _summarize(problems: list[Any]) -> str:
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{_join(first['loc'])}: {first['msg']}{more}."


def save_profile(path: Path, profile: TunedConfig) -> None:
    """Write a profile into a tuned file, keeping the other profiles in it.

    The file is written beside and renamed, under a lock, so that nobody ever reads half of it.

    Args:
        path: The tuned file; made when it is not there.
        profile: Replaces the profile of the same name.

    Raises:
        ProfileError: What lies at the path is not a tuned file; it is left as it is.
        OutputError: The file cannot be written.
    """
    from filelock import FileLock, Timeout  # brings asyncio along, which loading a profile does not need

    _check_folder(path)
    try:
        with FileLock(path.absolute().with_name(f".{path.name}.lock"), timeout=LOCK_SECONDS):
            others = read_file(path).profiles if path.exists() else ()
            kept = tuple(other for other in others if other.name != profile.name)
            write_atomically(path, format_file(TunedFile(schema_version=SCHEMA_VERSION, profiles=(*kept, profile))))
    except Timeout:
        raise OutputError(f"{path} is locked by another process for more than {LOCK_SECONDS:.0f} s.") from None
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}.") from None


def check_writable(path: Path) -> None:
    """Refuse an output path that cannot be written, before minutes are spent on it.

    Args:
        path: The tuned file to be.

    Raises:
        OutputError: Its folder is missing or cannot be written, or the path is a folder.
        ProfileError: Something else than a tuned file lies there.
    """
    if path.is_dir():
        raise OutputError(f"{path} is a folder; give a file with --output.")
    _check_folder(path)
    if path.exists():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read_file(path)


def _check_folder(path: Path) -> None:
    folder = path.absolute().parent
    if not folder.is_dir():
        raise OutputError(f"{path} cannot be written: there is no folder {folder}.")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"{path} cannot be written: the folder {folder} is read-only.")


def format_file(file: TunedFile) -> str:
    """Write a tuned file as indented JSON."""
    return file.model_dump_json(indent=2, by_alias=True) + "\n"


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old or the new text, never a part.

    Args:
        path: The file.
        text: Its new content.

    Raises:
        OSError: It cannot be written; the old file is still there.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
    beside = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        beside.chmod(0o644)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
