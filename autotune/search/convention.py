"""What a setting is where nothing speaks against it: training as it was, and the values that a careful hand sets."""

from __future__ import annotations

from typing import Any

from autotune.request import KNOBS, Knob, TuningRequest
from autotune.profiles.schema import LoaderConfig, StartMethod, Value
from autotune.search.space import CONVENTION, SearchSpace, list_values, make_config


class Convention(Value):
    """The values that settings keep unless a measurement shows that leaving them pays.

    Attributes:
        values: For each knob but the number of workers and the batch size: its conventional value, as far as the space
            allows it.
        training: For each knob that changes training, and that the user did not ask for: its value in the baseline.
        multiprocessing_context: Start method that the workload brings along.
    """

    values: dict[Knob, Any]
    training: dict[Knob, Any]
    multiprocessing_context: StartMethod | None = None

    def list_departures(self, config: LoaderConfig) -> tuple[Knob, ...]:
        """List the knobs whose value is not the conventional one."""
        return _list_differences(config, self.make_sibling(config))

    def list_training_changes(self, config: LoaderConfig) -> tuple[Knob, ...]:
        """List the knobs that would make training another one, unasked."""
        values = list_values(config)
        return tuple(knob for knob, value in self.training.items() if values[knob] != value)

    def make_sibling(self, config: LoaderConfig) -> LoaderConfig:
        """Give the configuration with the same workers and batch size, and all else as convention has it."""
        return make_config({**list_values(config), **self.values}, self.multiprocessing_context)

    def keep_training(self, config: LoaderConfig) -> LoaderConfig:
        """Give the conventional sibling that trains as the baseline does."""
        return make_config({**list_values(config), **self.values, **self.training}, self.multiprocessing_context)


def describe_difference(config: LoaderConfig, other: LoaderConfig) -> str:
    """Write the settings in which a configuration differs from another, as in `prefetch_factor=4 in_order=False`."""
    values = list_values(config)
    return " ".join(f"{knob}={values[knob]}" for knob in _list_differences(config, other))


def _list_differences(config: LoaderConfig, other: LoaderConfig) -> tuple[Knob, ...]:
    values, others = list_values(config), list_values(other)
    return tuple(knob for knob in KNOBS if values[knob] != others[knob])


def plan_convention(request: TuningRequest, space: SearchSpace, baseline: LoaderConfig, *, pinning: bool) -> Convention:
    """Settle what is conventional for a workload.

    Args:
        request: What the user asked for: a batch size that is asked to be chosen changes training as wished.
        space: What may be tried; a pinned knob has its pin for a convention.
        baseline: What the answer is compared with; its order of delivery is the one that training has.
        pinning: Whether pinned memory means something here.

    Returns:
        The convention.
    """
    order: dict[Knob, Any] = {"in_order": baseline.dataloader.in_order}
    wanted = {**CONVENTION, "pin_memory": pinning, "device_prefetch": False, **order}
    allowed = space.choices()
    values = {knob: value if value in allowed[knob] else allowed[knob][0] for knob, value in wanted.items()}
    is_size_asked = request.batch_sizes is not None or "batch_size" in {*request.fixed, *request.ranges}
    size: dict[Knob, Any] = {} if is_size_asked else {"batch_size": baseline.dataloader.batch_size}
    return Convention(
        values=values,
        training={"in_order": values["in_order"], **size},
        multiprocessing_context=space.multiprocessing_context,
    )
