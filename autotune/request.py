"""The tuning request, and import strings: child processes import the workload by them, without pickle."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from autotune.config import FrozenModel, JsonDict, StartMethod, Workers, check_json
from autotune.errors import UsageError
from autotune.settings import SETTINGS, Choice, SettingName
from autotune.units import format_seconds

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset, Sampler

SamplerName = Literal["model", "gp", "tpe", "random"]
SEED_COUNT: Final = 2**32  # numpy's generators take no larger seed
_NAME: Final = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_IMPORT_STRING: Final = re.compile(rf"({_NAME}|[^:\n\0]*[^:/\n\0]\.py):({_NAME})")
Positive = Annotated[float, Field(gt=0, le=1e9)]
Text = Annotated[str, AfterValidator(check_json)]
Name = Annotated[str, Field(min_length=1), AfterValidator(check_json)]


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
    """The workload to tune: a dataset or loader, and a training step."""

    dataset: Name  # import string of the factory: `pkg.mod:attr` or `train.py:attr`
    is_loader: bool = False  # whether the factory takes DataLoader settings and returns a loader (`--loader`)
    dataset_args: JsonDict = Field(default_factory=dict)  # of the factory
    split: Text | None = None  # name of one of several loaders or datasets that the factory returns
    step: Text | None = None  # import string of a factory that returns `step(batch)`; None is a built-in step
    step_seconds: Positive | None = None  # length of a simulated training step per batch; None is a real step
    device: Text = "auto"  # `auto`, `cpu`, or a torch device such as `cuda:0`
    start_method: StartMethod | None = None  # of the workers; None is the workload's own or Python's default
    nproc_per_node: Annotated[int, Field(ge=1, le=64)] = 1  # training processes on this host, each with its own loader
    working_dir: Text = "."  # folder from which import strings are resolved

    @model_validator(mode="after")
    def _check_step(self) -> Self:
        if self.step is not None and self.step_seconds is not None:
            raise ValueError("a training step and a simulated step time exclude each other: give one of them")
        return self

    def describe_step(self) -> str:
        """Return the name of the step in reports."""
        return self.step or (f"simulated {format_seconds(self.step_seconds)}" if self.step_seconds else "built-in")

    def check_import_strings(self) -> None:
        """Raise UsageError if an import string is malformed."""
        check_import_string("--loader" if self.is_loader else "--dataset", self.dataset)
        if self.step is not None:
            check_import_string("--step", self.step)


class TuningRequest(FrozenModel):
    """Everything that determines one tuning run."""

    workload: WorkloadRequest
    fixed: dict[SettingName, Choice] = Field(default_factory=dict)  # settings with a fixed value (`--set`)
    search: dict[SettingName, Values] = Field(default_factory=dict)  # those with a range or a list (`--search`)
    trials: Annotated[int, Field(ge=1)] = 40  # at most
    timeout_seconds: Positive | None = None  # time limit for the whole run
    trial_seconds: Positive = 2.0  # per validation trial; search trials use a part of it
    stall_seconds: Positive = 60.0  # without progress, after which a trial is stopped
    epochs: Annotated[int, Field(ge=1, le=10**9)] = 10  # length of the training run to predict throughput for
    seed: Annotated[int, Field(ge=0, lt=SEED_COUNT)] = 0  # of the sampler
    sampler: SamplerName = "model"  # the cost model corrected by the trials, or one of Optuna's samplers
    max_memory: str = "80%"  # of the available host memory, or a size
    max_shm: str = "80%"  # of the free space in /dev/shm, or a size
    max_gpu_memory: str = "90%"  # of the GPU's whole memory, or a size
    max_workers: Workers | None = None  # None derives it from the workload
    output: str = "dltune.json"  # path of the tuned file
    profile: Name | None = None  # label of the profile; None identifies it by machine class and workload
    storage: Text | None = None  # Optuna storage URL, or the path of a journal file; None keeps the study in memory
    study_name: Text | None = None  # of the Optuna study; None lets Optuna choose one
    fresh: bool = False  # whether to ignore saved trials and results

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        if twice := self.fixed.keys() & self.search.keys():
            raise ValueError(f"{min(twice)} is both set and searched: give it once")
        listed = {name: values for name, values in self.search.items() if not isinstance(values, ValueRange)}
        for name, values in ({name: (value,) for name, value in self.fixed.items()} | listed).items():
            for value in values:
                if value is None and None not in SETTINGS[name].choices:
                    raise ValueError(f"{name}=null is not possible: give it a value")
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
        ignored = {"output", "storage", "study_name", "fresh"}  # they do not change the result
        found = self.model_dump(mode="json", exclude=ignored)
        if self.workload.working_dir.startswith("/"):
            found["workload"]["working_dir"] = "."  # an absolute path is one of this machine
        return found


def reword(message: str) -> str:
    """Return a message of pydantic as part of a sentence."""
    return (
        message.removeprefix("Value error, ")
        .replace("Input should", "it must")
        .replace("Tuple should", "it must")
        .replace(" after validation", "")
    )


def explain_invalid(error: ValidationError) -> tuple[list[str], str]:
    """Return the path of the first invalid field, and the reason with the value, without the full stop."""
    problems = error.errors(include_url=False)
    if (problem := problems[0])["type"] == "model_type":  # neither a range, nor values that are possible
        others = (one for one in problems if one["type"] not in ("model_type", "tuple_type"))
        problem = next(others, problem)
    reason, given = reword(problem["msg"]), problem["input"]
    if reason.startswith("it must be") and isinstance(given, int | float | str) and len(repr(given)) <= 40:
        reason += f", not {given!r}"
    names = [part for part in map(str, problem["loc"]) if not part.startswith(("[", "function-"))]
    return [part for part in names if part not in {"int", "bool", "str"}], reason


def split_import_string(text: str) -> tuple[str, str] | None:
    """Split an import string into a dotted module name or the path of a script, and an attribute; None if invalid."""
    found = _IMPORT_STRING.fullmatch(text)
    return None if found is None else (found[1], found[2])


def check_import_string(option: str, text: str) -> None:
    """Raise UsageError if an option's import string is malformed."""
    if split_import_string(text) is not None:
        return
    hint = ""
    if text.endswith(".py"):
        hint = f" Name a function in the file, as in {text}:make_loader."
    elif ":" not in text and "/" not in text:
        module, dot, name = text.rpartition(".")
        example = f"{text}:{'make_step' if option == '--step' else 'make_dataset'}"
        hint = f" Is it {module}:{name}, or {example}?" if dot else f" Is the attribute missing, as in {example}?"
    elif "/" in text:
        hint = " A module's name has dots: data/images is data.images; or pass the file: data/images.py."
    raise UsageError(f"{option} {text}: not of the form package.module:attribute or file.py:attribute.{hint}")
