"""Which workload a profile was tuned for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from autotune.config import BoundedBytes, BoundedCount, FrozenModel
from autotune.workload import join_title

DatasetKind = Literal["map", "iterable"]


class WorkloadIdentity(FrozenModel):
    """What was tuned: which dataset, how many samples of what size, and which step consumed them.

    Attributes:
        dataset: Import string of the factory.
        dataset_args: What it was given.
        split: Which one it is of several loaders or datasets that the factory returns; None where it returns one.
        samples: Samples in an epoch; None when an iterable dataset does not tell.
        sample_bytes: Bytes of tensors in one sample, mean.
        step: Import string of the step, `emulated 35.0 ms` or `built-in`.
        kind: `map` or `iterable`: only the former can be shuffled by a loader; None in files of earlier versions.
        loader_class: The user's own class of loaders, which was measured; None for a plain DataLoader.
        loader_decides: Settings that this class decides by itself, and cannot be given.
        local_world_size: Training processes on the host, each with a loader of its own.
    """

    dataset: str
    dataset_args: dict[str, Any] = Field(default_factory=dict)
    split: str | None = None
    samples: BoundedCount | None
    sample_bytes: BoundedBytes
    step: str
    kind: DatasetKind | None = None
    loader_class: str | None = None
    loader_decides: tuple[str, ...] = ()
    local_world_size: Annotated[int, Field(ge=1, le=2**31)] = 1

    @property
    def title(self) -> str:
        """What was tuned, in the words of the report."""
        return join_title(self.dataset, self.split)

    @property
    def is_function_made(self) -> bool:
        """Whether a function of the settings makes its loader, and not a class, or DataLoader."""
        return self.loader_class is not None and ":" in self.loader_class

    def leave_out_decided(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Leave out the settings that the user's own loader decides."""
        return {name: value for name, value in settings.items() if name not in self.loader_decides}
