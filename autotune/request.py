"""What the user asked for: one value, whether it came from the command line or from Python."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from autotune.config import BatchSize, FrozenModel, KnobValue, SharingStrategy, StartMethod, Workers
from autotune.import_strings import check_import_string
from autotune.knobs import KNOBS, KnobName
from autotune.units import format_seconds
from autotune.workload import join_title

IsolationMode = Literal["auto", "none"]
ExplainMode = Literal["full", "brief", "none"]
SamplerName = Literal["model", "tpe", "gp", "random", "grid"]
SEED_COUNT: Final = 2**32  # numpy's generators know no others
MASK: Final = "***"  # in a storage URL that is shown or written down
MAX_RANKS: Final = 64  # training processes on one host; no machine has as many accelerators
MAX_SECONDS: Final = 1e9  # thirty years; no clock here is asked for more

Positive = Annotated[float, Field(gt=0, le=MAX_SECONDS)]


def _refuse_what_json_cannot_say(arguments: dict[str, Any]) -> dict[str, Any]:
    """Refuse what would not reach the child as it was given: not a number, bytes that are no text, other types."""
    try:
        json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the values must be what JSON can say ({error})") from None
    return arguments


def _refuse_bytes(text: str) -> str:
    """Refuse what the shell gave us although it is no text: names of that kind can be given to files only."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{text!r} is not UTF-8") from None
    return text


def _order_choices(choices: tuple[KnobValue, ...]) -> tuple[KnobValue, ...]:
    """Put numbers in ascending order; refuse choices that mean the same twice, or switches among numbers."""
    if len(set(choices)) < len(choices):
        raise ValueError("a choice is given twice (true and 1 are one, too)")
    numbers = [choice for choice in choices if not isinstance(choice, str | bool)]
    return tuple(sorted(numbers)) if len(numbers) == len(choices) else choices


Text = Annotated[str, AfterValidator(_refuse_bytes)]
MAX_CHOICES: Final = 64  # of one knob
DENSE_RANGE_WIDTH: Final = 16  # a range of whole numbers that the user gave is searched one by one up to this width
Choices = Annotated[tuple[KnobValue, ...], Field(min_length=1, max_length=MAX_CHOICES), AfterValidator(_order_choices)]
JsonObject = Annotated[dict[str, Any], AfterValidator(_refuse_what_json_cannot_say)]


class WorkloadRequest(FrozenModel):
    """Which workload to tune, and what consumes its batches.

    Attributes:
        dataset: Import string of the factory: `pkg.mod:attr`, or `train.py:attr`.
        is_loader: Whether that is a function which makes a loader of the settings, and is called with them.
        dataset_args: Keyword arguments of the factory.
        split: Name of the one to tune, of several loaders or datasets that the factory returns.
        knobs: Further arguments of the factory, that are searched: the values to choose from, by name.
        collate: Import string of a `collate_fn`; None keeps the workload's own.
        step: Import string of a factory that returns `step(batch)`; None for an emulated or built-in step.
        step_seconds: Seconds an emulated accelerator is busy for each batch; None for a real step.
        device: `auto`, `cpu`, or a torch device such as `cuda:0`.
        main: File or module of the script that training is started by, which workers that are not forked import.
        ranks: Training processes that run at once on this host, each with a loader of its own.
        cold: File or folder that the dataset reads, which is dropped from memory before each epoch; None for nothing.
        start_method: How workers start; None is the workload's way or the interpreter's, `auto` the fastest.
        working_dir: Folder from which the import strings are resolved; by default the one that is current.
    """

    dataset: Annotated[Text, Field(min_length=1)]
    is_loader: bool = False
    dataset_args: JsonObject = Field(default_factory=dict)
    split: Text | None = None
    knobs: dict[str, Choices] = Field(default_factory=dict)
    collate: Text | None = None
    step: Text | None = None
    step_seconds: Positive | None = None
    device: Text = "auto"
    main: Text | None = None
    start_method: StartMethod | Literal["auto"] | None = None
    ranks: Annotated[int, Field(ge=1, le=MAX_RANKS)] = 1
    cold: Text | None = None
    working_dir: Text = "."

    @model_validator(mode="after")
    def _refuse_two_steps(self) -> Self:
        if self.step is not None and self.step_seconds is not None:
            raise ValueError("a step and an emulated step time exclude each other: give one of them")
        return self

    @model_validator(mode="after")
    def _refuse_knobs_that_are_settled(self) -> Self:
        for name in self.knobs:
            if not name.isidentifier():
                raise ValueError(f"--knob {name}: not the name of an argument")
            if name in KNOBS:
                raise ValueError(f"--knob {name}: it is searched by itself; narrow it with --range or --fix")
            if name in self.dataset_args:
                raise ValueError(f"--knob {name}: --dataset-arg gives it a value already; leave one of them out")
        return self

    @property
    def title(self) -> str:
        """What is tuned, in the words of the report."""
        return join_title(self.dataset, self.split)

    def describe_step(self) -> str:
        """Name the step in the words of the report."""
        if self.step is not None:
            return self.step
        if self.step_seconds is not None:
            return f"emulated {format_seconds(self.step_seconds)}"
        return "built-in"


class TuningRequest(FrozenModel):
    """Everything that decides how one run of the tuner goes.

    Attributes:
        workload: What to tune.
        batch_sizes: Batch sizes to choose from; None keeps that of a ready DataLoader, and searches powers of two from
            16 to 512 for others.
        fixed: Knobs that are pinned to one value.
        ranges: Knobs narrowed to an inclusive range.
        trials: Most configurations to try; with 0 the answer is predicted from the probe.
        timeout_seconds: Most seconds for the whole run; None for no limit.
        trial_seconds: Most seconds of measuring in one trial.
        stall_seconds: Seconds without any progress after which a child is ended.
        epochs: Length of the training run that a score stands for, in epochs.
        explain: How it is found out what each setting gave: `full` measures it, `brief` takes what the search knows.
        seed: Seed of the sampler.
        sampler: What proposes configurations: the cost model as corrected by the trials, or one of Optuna's samplers.
        max_memory: Budget for host memory, as bytes or a share of what is available.
        max_shm: Budget for /dev/shm, as bytes or a share of what is free.
        max_gpu_memory: Budget for device memory, as bytes or a share of the whole.
        max_workers: Upper bound for num_workers; None lets the probe decide.
        isolation: `auto` runs trials in as much of a sandbox as the machine allows, `none` runs them plainly.
        output: Path of the tuned file.
        profile: Name for the profile; None makes one from hardware and workload.
        storage: Optuna storage URL; None keeps SQLite under `.dltune/`.
        study_name: Name of the study; None makes one from request and hardware.
        resume: None continues an unfinished run; True also a finished one; False starts afresh.
    """

    workload: WorkloadRequest
    batch_sizes: tuple[BatchSize, ...] | None = None
    fixed: dict[KnobName, int | bool | SharingStrategy] = Field(default_factory=dict)
    ranges: dict[KnobName, tuple[int, int]] = Field(default_factory=dict)
    trials: Annotated[int, Field(ge=0)] = 40
    timeout_seconds: Positive | None = None
    trial_seconds: Positive = 2.0
    stall_seconds: Positive = 60.0
    epochs: Annotated[int, Field(ge=1, le=10**9)] = 10
    explain: ExplainMode = "brief"
    seed: Annotated[int, Field(ge=0, lt=SEED_COUNT)] = 0
    sampler: SamplerName = "model"
    max_memory: str = "80%"
    max_shm: str = "80%"
    max_gpu_memory: str = "90%"
    max_workers: Workers | None = None
    isolation: IsolationMode = "auto"
    output: str = "dltune.json"
    profile: Text | None = None
    storage: Text | None = None
    study_name: Text | None = None
    resume: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_world_size(cls, values: Any) -> Any:
        """Read what earlier versions wrote down: they divided budgets by the processes that shared them."""
        if not isinstance(values, dict) or not isinstance(values.get("workload"), dict):
            return values
        rest = {name: value for name, value in values.items() if name != "world_size"}
        return rest | {"workload": {"ranks": values.get("world_size", 1)} | values["workload"]}

    def record(self) -> dict[str, Any]:
        """Give what is written down of it, to ask for the same again on any machine.

        Left out are the password in a storage URL, and the folder of this checkout: the file travels with the code.
        """
        values = self.forget_folder().model_dump(mode="json")
        if self.storage is not None:
            values["storage"] = hide_password(self.storage)
        return values

    def forget_folder(self) -> Self:
        """Give the same for the current folder, where it was for one of this machine by its whole path."""
        if not self.workload.working_dir.startswith("/"):
            return self
        return self.model_copy(update={"workload": self.workload.model_copy(update={"working_dir": "."})})


def hide_password(url: str) -> str:
    """Write a storage URL without the password in it."""
    url = re.sub(r"://([^:/@]*):[^@]*@", rf"://\1:{MASK}@", url)
    return re.sub(r"([?&]\w*(?:password|passwd|pwd)=)[^&#]*", rf"\1{MASK}", url, flags=re.IGNORECASE)


def lacks_password(url: str) -> bool:
    """Tell whether a storage URL had a password, which was not written down."""
    return f":{MASK}@" in url or f"={MASK}" in url


def list_names(workload: WorkloadRequest) -> dict[str, str]:
    """List the import strings of a request by their options."""
    named = {"--loader" if workload.is_loader else "--dataset": workload.dataset}
    given = {"--step": workload.step, "--collate": workload.collate}
    return named | {option: text for option, text in given.items() if text is not None}


def check_names(workload: WorkloadRequest) -> None:
    """Refuse import strings that name nothing; raises UsageError."""
    for option, text in list_names(workload).items():
        check_import_string(option, text)
