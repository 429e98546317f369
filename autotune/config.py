"""A configuration: what a DataLoader is given and how its process is set up; and the number types of all values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StrictBool,
    StrictStr,
    model_serializer,
    model_validator,
)

SharingStrategy = Literal["file_descriptor", "file_system"]
StartMethod = Literal["fork", "spawn", "forkserver"]
Count = Annotated[int, Field(ge=0)]
Bytes = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]

# What a file or another process tells is not trusted: these bounds are beyond every machine, and keep sums and products
# of such numbers within what a float holds, and loops over them short.
BoundedCount = Annotated[int, Field(ge=0, le=2**63 - 1)]
BoundedBytes = BoundedCount
MAX_RATE: Final = 1e30
BoundedRate = Annotated[float, Field(ge=0, le=MAX_RATE)]
Product = BoundedRate  # of numbers that were told
BoundedSeconds = Annotated[float, Field(ge=0, le=1e9)]
BoundedCpus = Annotated[float, Field(ge=1e-4, le=1e6)]
BatchSize = Annotated[int, Field(ge=1, le=2**31 - 1)]
Prefetch = Annotated[int, Field(ge=1, le=2**16)]
MAX_WORKERS: Final = 4096
Workers = Annotated[int, Field(ge=0, le=MAX_WORKERS)]
CONFIDENCE: Final = 0.95  # of every interval: probability that it holds the truth
MAX_TEXT_LENGTH: Final = 20_000  # characters: a traceback is shorter, a tensor's text is not


def _refuse_reversed_bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = bounds
    if not low <= high:
        raise ValueError(f"the upper bound {high} is below the lower bound {low}")
    return bounds


def _shorten(text: str) -> str:
    if len(text) <= MAX_TEXT_LENGTH:
        return text
    half = MAX_TEXT_LENGTH // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters left out]\n{text[-half:]}"


Bounded = Annotated[float, Field(ge=-MAX_RATE, le=MAX_RATE)]
Interval = Annotated[tuple[Bounded, Bounded], AfterValidator(_refuse_reversed_bounds)]
"""A 95 % confidence interval: lower and upper bound in the unit of the value it belongs to."""
LongText = Annotated[str, AfterValidator(_shorten)]
"""Text for people, cut in the middle where it is longer than anybody reads."""


KnobInt = Annotated[int, Field(strict=True, ge=-(2**63), le=2**63 - 1)]
KnobFloat = Annotated[float, Field(strict=True, ge=-MAX_RATE, le=MAX_RATE)]
KnobText = Annotated[StrictStr, Field(max_length=200)]
KnobValue = StrictBool | KnobInt | KnobFloat | KnobText
"""A value of a knob that the user's own factory has."""


class FrozenModel(BaseModel):
    """Base of all values that are read or written as JSON: frozen, strict about unknown fields.

    What pydantic needs to check one is built when the first is made: half of them are never made by code that loads.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy with changes; pydantic itself would take a field that does not exist, and change nothing."""
        if unknown := set(update or ()) - set(type(self).model_fields):
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        return super().model_copy(update=update, deep=deep)


def _leave_out(written: dict[str, Any], field: str, *, unless: Any) -> dict[str, Any]:
    """Leave out of a file what earlier versions do not know, unless it says something."""
    return written if unless else {name: value for name, value in written.items() if name != field}


class DataLoaderSettings(FrozenModel):
    """Arguments of `torch.utils.data.DataLoader`, in a combination it accepts.

    Attributes:
        batch_size: Samples per batch and per process. None leaves batching to the training code, which
            passes its own `batch_sampler` (or `batch_size=None`).
        num_workers: Worker processes; 0 loads in the training process.
        prefetch_factor: Batches that each worker prepares ahead; None without workers.
        pin_memory: Whether batches are put into pinned memory, from which a device copies faster.
        persistent_workers: Whether workers live on from epoch to epoch.
        in_order: Whether batches come in the order in which the sampler drew them; False changes training.
    """

    batch_size: BatchSize | None
    num_workers: Workers = 0
    prefetch_factor: Prefetch | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    in_order: bool = True

    @model_validator(mode="after")
    def _refuse_what_dataloader_refuses(self) -> Self:
        if self.num_workers == 0:
            if self.prefetch_factor is not None:
                raise ValueError("prefetch_factor needs num_workers > 0")
            if self.persistent_workers:
                raise ValueError("persistent_workers needs num_workers > 0")
            if not self.in_order:
                raise ValueError("in_order=False needs num_workers > 0")
        elif self.prefetch_factor is None:
            raise ValueError("prefetch_factor is required with num_workers > 0")
        return self


class ProcessSettings(FrozenModel):
    """Settings of the training process beside the loader's: how workers start, and how batches travel.

    Attributes:
        sharing_strategy: How tensors in shared memory go from worker to training process, as torch calls it.
        multiprocessing_context: Start method for the workers; None is the interpreter's default.
        non_blocking: Whether training code must copy with `batch.to(device, non_blocking=True)`, which lets the host
            go on during a copy from pinned memory.
        device_prefetch: Whether training code must go through `autotune.device_prefetch(loader, device)`, which
            copies the next batch while the step computes on this one.
        worker_threads: Threads that libraries may use in each worker; None leaves that to them.
    """

    sharing_strategy: SharingStrategy = "file_descriptor"
    multiprocessing_context: StartMethod | None = None
    non_blocking: bool = False
    device_prefetch: bool = False
    worker_threads: Annotated[int, Field(ge=1, le=1024)] | None = None

    @model_serializer(mode="wrap")
    def _leave_out_usual_threads(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _leave_out(write(self), "worker_threads", unless=self.worker_threads)


class LoaderConfig(FrozenModel):
    """One point of the search: what the loader is given, how its process is set up, and the user's own knobs.

    Attributes:
        dataloader: What the loader is given.
        process: How the training process and its workers are set up.
        knobs: Arguments of the user's factory that are searched as well, by name.
    """

    dataloader: DataLoaderSettings
    process: ProcessSettings = Field(default_factory=ProcessSettings)
    knobs: dict[str, KnobValue] = Field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.dataloader, self.process, tuple(sorted(self.knobs.items()))))

    @model_serializer(mode="wrap")
    def _leave_out_no_knobs(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _leave_out(write(self), "knobs", unless=self.knobs)

    def by_name(self) -> dict[str, Any]:
        """Give every setting by its name, whichever part of the configuration holds it."""
        return {**dict(self.dataloader), **dict(self.process), **self.knobs}

    def loader_kwargs(self) -> dict[str, Any]:
        """Give the arguments for `DataLoader`, leaving out those it refuses in this combination.

        `batch_size` is absent when the configuration leaves batching alone.
        """
        settings = self.dataloader
        kwargs: dict[str, Any] = {"num_workers": settings.num_workers, "pin_memory": settings.pin_memory}
        if settings.batch_size is not None:
            kwargs["batch_size"] = settings.batch_size
        if settings.num_workers:
            kwargs |= {
                "prefetch_factor": settings.prefetch_factor,
                "persistent_workers": settings.persistent_workers,
                "in_order": settings.in_order,
            }
            if self.process.multiprocessing_context is not None:
                kwargs["multiprocessing_context"] = self.process.multiprocessing_context
        return kwargs


class Configured(FrozenModel):
    """Something that is told of a configuration.

    Attributes:
        config: The configuration.
    """

    config: LoaderConfig

    @property
    def dataloader(self) -> DataLoaderSettings:
        """What the loader is given."""
        return self.config.dataloader

    @property
    def process(self) -> ProcessSettings:
        """How its process is set up."""
        return self.config.process
