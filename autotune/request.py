"""The workload to tune and the tuning request, whether it comes from the command line, from Python or a profile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from autotune.config import FrozenModel, StartMethod, Workers
from autotune.import_strings import check_import_string
from autotune.settings import SETTINGS, Choice, SettingName
from autotune.units import format_seconds

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset, Sampler

SamplerName = Literal["model", "gp", "tpe", "random"]
SEED_COUNT: Final = 2**32  # numpy's generators take no larger seed
RUN_FIELDS: Final = frozenset({"output", "storage", "study_name", "fresh"})  # they do not change the result

Positive = Annotated[float, Field(gt=0, le=1e9)]


def _check_json(value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the values must be representable in JSON ({error})") from None
    return value


Text = Annotated[str, AfterValidator(_check_json)]
JsonObject = Annotated[dict[str, Any], AfterValidator(_check_json)]


class ValueRange(FrozenModel):
    """An inclusive range of whole numbers."""

    low: Annotated[int, Field(ge=0)]
    high: Annotated[int, Field(ge=0)]

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"the lower end {self.low} is above the upper end {self.high}")
        return self


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A dataset with further arguments of its `DataLoader`, which a dataset factory may return.

    A map-style dataset is shuffled unless `shuffle` is False or there is a sampler. With a `batch_sampler`, the batch
    size is not tuned. `batched=False` returns single samples, as `DataLoader(batch_size=None)` does.
    """

    dataset: Dataset[Any]
    shuffle: bool | None = None
    sampler: Sampler[Any] | Iterable[Any] | None = None
    batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None
    batched: bool = True
    collate_fn: Callable[[Any], Any] | None = None
    worker_init_fn: Callable[[int], None] | None = None
    generator: torch.Generator | None = None
    drop_last: bool = False
    timeout: float = 0.0
    multiprocessing_context: StartMethod | None = None


Values = ValueRange | Annotated[tuple[Choice, ...], Field(min_length=1, max_length=64)]


class WorkloadRequest(FrozenModel):
    """The workload to tune: a dataset or loader, and a training step.

    Attributes:
        dataset: Import string of the factory: `pkg.mod:attr` or `train.py:attr`.
        is_loader: Whether the factory takes DataLoader settings and returns a loader (`--loader`).
        dataset_args: Keyword arguments of the factory.
        split: Name of one of several loaders or datasets that the factory returns.
        collate: Import string of a `collate_fn`; None keeps the workload's own.
        step: Import string of a factory that returns `step(batch)`; None for a simulated or built-in step.
        step_seconds: Length of a simulated training step per batch, in seconds; None for a real step.
        device: `auto`, `cpu`, or a torch device such as `cuda:0`.
        main: Training script that workers import if they are not forked.
        start_method: Start method of the workers; None is the workload's own or Python's default.
        nproc_per_node: Training processes on this host, each with its own loader.
        working_dir: Folder from which import strings are resolved.
    """

    dataset: Annotated[Text, Field(min_length=1)]
    is_loader: bool = False
    dataset_args: JsonObject = Field(default_factory=dict)
    split: Text | None = None
    collate: Text | None = None
    step: Text | None = None
    step_seconds: Positive | None = None
    device: Text = "auto"
    main: Text | None = None
    start_method: StartMethod | None = None
    nproc_per_node: Annotated[int, Field(ge=1, le=64)] = 1
    working_dir: Text = "."

    @model_validator(mode="after")
    def _check_step(self) -> Self:
        if self.step is not None and self.step_seconds is not None:
            raise ValueError("a training step and a simulated step time exclude each other: give one of them")
        return self

    @property
    def title(self) -> str:
        """Name of the workload."""
        return self.dataset if self.split is None else f"{self.dataset} [{self.split}]"

    def describe_step(self) -> str:
        """Return the name of the step in reports."""
        simulated = "built-in" if self.step_seconds is None else f"simulated {format_seconds(self.step_seconds)}"
        return self.step or simulated

    def check_import_strings(self) -> None:
        """Raise UsageError if an import string is malformed."""
        named = {"--loader" if self.is_loader else "--dataset": self.dataset, "--step": self.step}
        for option, text in (named | {"--collate": self.collate}).items():
            if text is not None:
                check_import_string(option, text)


class TuningRequest(FrozenModel):
    """Everything that determines one tuning run.

    Attributes:
        workload: The workload to tune.
        fixed: Settings with a fixed value (`--set`).
        search: Settings with a restricted search range or list of values (`--search`).
        trials: Maximum number of trials.
        timeout_seconds: Time limit for the whole run, in seconds; None for no limit.
        trial_seconds: Seconds per validation trial; search trials use a part of it.
        stall_seconds: Seconds without progress after which a trial is stopped.
        epochs: Length of the training run to predict throughput for, in epochs.
        seed: Seed of the sampler.
        sampler: `model` is the cost model corrected by the trials; the others are Optuna's samplers.
        max_memory: Host memory limit, as a size or a percentage of the available memory.
        max_shm: /dev/shm limit, as a size or a percentage of the free space.
        max_gpu_memory: GPU memory limit, as a size or a percentage of the whole.
        max_workers: Maximum of num_workers; None derives it from the workload.
        output: Path of the tuned file.
        profile: Label of the profile in the file; None identifies it by machine and workload.
        storage: Optuna storage URL, or the path of a journal file; None keeps the study in memory.
        study_name: Name of the Optuna study; None lets Optuna choose one.
        fresh: Whether to ignore saved trials and results.
    """

    workload: WorkloadRequest
    fixed: dict[SettingName, Choice] = Field(default_factory=dict)
    search: dict[SettingName, Values] = Field(default_factory=dict)
    trials: Annotated[int, Field(ge=1)] = 40
    timeout_seconds: Positive | None = None
    trial_seconds: Positive = 2.0
    stall_seconds: Positive = 60.0
    epochs: Annotated[int, Field(ge=1, le=10**9)] = 10
    seed: Annotated[int, Field(ge=0, lt=SEED_COUNT)] = 0
    sampler: SamplerName = "model"
    max_memory: str = "80%"
    max_shm: str = "80%"
    max_gpu_memory: str = "90%"
    max_workers: Workers | None = None
    output: str = "dltune.json"
    profile: Text | None = None
    storage: Text | None = None
    study_name: Text | None = None
    fresh: bool = False

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        if twice := self.fixed.keys() & self.search.keys():
            raise ValueError(f"{min(twice)} is both set and searched: give it once")
        listed = {name: values for name, values in self.search.items() if not isinstance(values, ValueRange)}
        for name, values in ({name: (value,) for name, value in self.fixed.items()} | listed).items():
            for value in values:
                try:
                    SETTINGS[name].check(value)
                except ValidationError as error:
                    raise ValueError(f"{name}={value!r} is not possible: {explain_invalid(error)[1]}") from None
        return self

    def is_asked(self, name: SettingName) -> bool:
        """Return whether the user set or restricted a setting."""
        return name in self.fixed or name in self.search

    def record(self) -> dict[str, Any]:
        """Return the fields that a profile stores; a storage URL, which may contain a password, is omitted."""
        return self.forget_folder().model_dump(mode="json", exclude=set(RUN_FIELDS))

    def forget_folder(self) -> Self:
        """Return the same request for the current folder if its folder is an absolute path of this machine."""
        if not self.workload.working_dir.startswith("/"):
            return self
        return self.model_copy(update={"workload": self.workload.model_copy(update={"working_dir": "."})})


def explain_invalid(error: ValidationError) -> tuple[list[str], str]:
    """Return the path of the first invalid field, and the reason without the full stop."""
    problem = error.errors(include_url=False)[0]
    return [str(part) for part in problem["loc"]], problem["msg"].removeprefix("Value error, ")
