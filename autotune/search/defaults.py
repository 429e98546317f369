"""What a setting is where nothing speaks against it: training as it was, all else as is usual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from autotune.config import KnobValue, LoaderConfig, StartMethod
from autotune.request import TuningRequest
from autotune.search.space import SearchSpace
from autotune.settings import SETTINGS, config_from_values, differing_settings, setting_values

SIZES: Final[tuple[str, ...]] = ("num_workers", "batch_size")  # of these a convention says nothing


@dataclass(frozen=True, slots=True)
class DefaultValues:
    """The values that settings keep unless a measurement shows that leaving them pays.

    Attributes:
        values: Of each knob but the number of workers and the batch size, as far as the space allows the usual one.
        training: Of each knob that changes training, and that the user did not ask for: its value in the baseline.
        start_method: Start method that the workload brings along.
        knobs: The user's own, as they are in the baseline. That they are searched was asked for, so no convention holds
            them; only of equals the one is taken that keeps them.
    """

    values: Mapping[str, Any]
    training: Mapping[str, Any]
    start_method: StartMethod | None = None
    knobs: Mapping[str, KnobValue] = field(default_factory=dict)

    def list_non_defaults(self, config: LoaderConfig) -> tuple[str, ...]:
        """List the knobs whose value is not the conventional one, or, of the user's own, not that of the baseline."""
        return differing_settings(config, self.keep_knobs(self.default_variant(config)))

    def list_training_changes(self, config: LoaderConfig) -> tuple[str, ...]:
        """List the knobs that would make training another one, unasked."""
        values = setting_values(config)
        return tuple(knob for knob, value in self.training.items() if values[knob] != value)

    def default_variant(self, config: LoaderConfig) -> LoaderConfig:
        """Give the configuration with the same workers, batch size and own knobs, and all else as convention has it."""
        return config_from_values({**setting_values(config), **self.values}, self.start_method)

    def keep_order(self, config: LoaderConfig) -> LoaderConfig:
        """Give the same configuration, but for the switches that would make training another one, unasked."""
        kept = {knob: value for knob, value in self.training.items() if knob not in SIZES}
        return config_from_values({**setting_values(config), **kept}, self.start_method)

    def keep_knobs(self, config: LoaderConfig) -> LoaderConfig:
        """Give the same configuration with the user's own knobs as in the baseline."""
        return config.model_copy(update={"knobs": dict(self.knobs)})

    def keep_training(self, config: LoaderConfig) -> LoaderConfig:
        """Give the conventional sibling that trains as the baseline does."""
        return config_from_values({**setting_values(config), **self.values, **self.training}, self.start_method)


def default_values(
    request: TuningRequest, space: SearchSpace, baseline: LoaderConfig, *, pinning: bool
) -> DefaultValues:
    """Settle what is conventional: a pinned knob has its pin for a convention, training that of the baseline."""
    training: dict[str, Any] = {knob.name: knob.read(baseline) for knob in SETTINGS.values() if knob.changes_training}
    wanted = {knob.name: knob.recommended for knob in SETTINGS.values()} | {"pin_memory": pinning} | training
    values = {name: _allow(wanted[name], space.choices[name]) for name in wanted if name not in SIZES}
    is_size_asked = request.batch_sizes is not None or "batch_size" in {*request.fixed, *request.ranges}
    if is_size_asked:  # training changes as wished
        del training["batch_size"]
    kept = {name: values.get(name, value) for name, value in training.items()}
    return DefaultValues(values, kept, space.start_method, baseline.knobs)


def _allow(value: Any, choices: tuple[Any, ...]) -> Any:
    return value if value in choices else choices[0]
