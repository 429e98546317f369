"""A DataLoader configuration, and the bounded number types that all JSON values use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

SharingStrategy = Literal["file_descriptor", "file_system"]
StartMethod = Literal["fork", "spawn", "forkserver"]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]

# Bounds of numbers from files and other processes: above every machine, so low that sums and products fit in a float.
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
MAX_RATE: Final = 1e30
Rate = Annotated[float, Field(ge=0, le=MAX_RATE)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Cpus = Annotated[float, Field(ge=1e-4, le=1e6)]
Workers = Annotated[int, Field(ge=0, le=4096)]
CONFIDENCE: Final = 0.95  # of every interval: probability that it covers the true value
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
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters omitted]\n{text[-half:]}"


Bounded = Annotated[float, Field(ge=-MAX_RATE, le=MAX_RATE)]
Interval = Annotated[tuple[Bounded, Bounded], AfterValidator(_refuse_reversed_bounds)]  # a 95% confidence interval
LongText = Annotated[str, AfterValidator(_shorten)]  # for people, shortened in the middle if it is too long to read


def check_json(value: Any) -> Any:
    """Return a value as JSON represents it, or raise ValueError if it cannot."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the values must be representable in JSON ({error})") from None
    return json.loads(text)


JsonDict = Annotated[dict[str, Any], AfterValidator(check_json)]


class FrozenModel(BaseModel):
    """Base of all JSON values: frozen, and strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)  # loading a profile builds few models

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy with changes; unlike pydantic, reject fields that do not exist."""
        if unknown := set(update or ()) - set(type(self).model_fields):
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        return super().model_copy(update=update, deep=deep)


class DataLoaderSettings(FrozenModel):
    """Arguments of `torch.utils.data.DataLoader`, in a combination it accepts; `autotune.settings` describes them."""

    batch_size: Annotated[int, Field(ge=1, le=2**31 - 1)] | None  # None leaves batching to the training code
    num_workers: Workers = 0
    prefetch_factor: Annotated[int, Field(ge=1, le=2**16)] | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    in_order: bool = True

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if self.num_workers and self.prefetch_factor is None:
            raise ValueError("prefetch_factor is required with num_workers > 0")
        given = {"prefetch_factor": self.prefetch_factor is not None, "persistent_workers": self.persistent_workers}
        for name, is_given in (given | {"in_order=False": not self.in_order}).items():
            if is_given and not self.num_workers:
                raise ValueError(f"{name} needs num_workers > 0")
        return self


class ProcessSettings(FrozenModel):
    """Settings of the training process that are not arguments of the DataLoader, and the workers' start method."""

    sharing_strategy: SharingStrategy = "file_descriptor"
    multiprocessing_context: StartMethod | None = None
    non_blocking: bool = False  # training code must copy with batch.to(device, non_blocking=True)
    device_prefetch: bool = False
    worker_threads: Annotated[int, Field(ge=1, le=1024)] | None = None


class LoaderConfig(FrozenModel):
    """A configuration: a value for each setting."""

    dataloader: DataLoaderSettings
    process: ProcessSettings = Field(default_factory=ProcessSettings)

    def by_name(self) -> dict[str, Any]:
        """Return every field by its name, whichever part of the configuration holds it."""
        return {**dict(self.dataloader), **dict(self.process)}

    def loader_kwargs(self) -> dict[str, Any]:
        """Return the arguments for `DataLoader`, without those that it rejects in this combination."""
        names = ["num_workers", "pin_memory", "batch_size"]
        if self.dataloader.num_workers:
            names += ["prefetch_factor", "persistent_workers", "in_order", "multiprocessing_context"]
        values = self.by_name()
        return {name: values[name] for name in names if values[name] is not None}


class Configured(FrozenModel):
    """Base of values that describe one configuration."""

    config: LoaderConfig

    @property
    def dataloader(self) -> DataLoaderSettings:
        """Arguments of the DataLoader."""
        return self.config.dataloader
