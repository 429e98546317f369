"""Which configurations may be tried: every one is legal by construction."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from autotune.config import LoaderConfig, StartMethod
from autotune.settings import Choice, SETTINGS, config_from_values, setting_values


@dataclass(frozen=True)
class SearchSpace:
    """Choices for every knob, ascending; a knob with one choice is pinned."""

    choices: Mapping[str, tuple[Any, ...]]
    start_method: StartMethod | None = None  # of the workers; never searched
    usual: Mapping[str, Any] = field(default_factory=dict)  # values of the user's own knobs where nothing says another
    notes: tuple[str, ...] = ()  # why a knob is not searched

    @classmethod
    def of(cls, **choices: tuple[Choice, ...]) -> Self:
        """Make a space of some knobs' choices and, for the others, those of the table; without device_prefetch."""
        usual = {knob.name: knob.choices for knob in SETTINGS.values()} | {
            "device_prefetch": (False,),
            "worker_threads": (None,),
        }
        return cls({name: tuple(choices.get(name, usual[name])) for name in SETTINGS})

    def searched(self) -> dict[str, tuple[Any, ...]]:
        """List the knobs that have more than one choice."""
        return {name: choices for name, choices in self.choices.items() if len(choices) > 1}

    def from_params(self, params: Mapping[Any, Any]) -> LoaderConfig:
        """Make the legal configuration of a value for each searched knob, each snapped to the nearest choice."""
        wanted = {**self.usual, **params}
        picked = {name: nearest_choice(wanted.get(name), choices) for name, choices in self.choices.items()}
        return config_from_values(picked, self.start_method)

    def to_params(self, config: LoaderConfig) -> dict[str, Any]:
        """Give the searched parameters that `from_params` turns into a configuration; values outside are snapped."""
        values = {**self.usual, **setting_values(config)}
        return {name: nearest_choice(values[name], choices) for name, choices in self.searched().items()}

    def nearest(self, config: LoaderConfig) -> LoaderConfig:
        """Give the configuration of the space that is nearest to another one: that one itself where it lies inside."""
        return self.from_params(self.to_params(config))

    def configs(self, limit: int | None = None) -> Iterator[LoaderConfig]:
        """Yield every distinct legal configuration of the space; of more than `limit` a part, drawn at random."""
        seen = set()
        for values in self._combine(limit):
            config = config_from_values(dict(zip(self.choices, values, strict=True)), self.start_method)
            if config not in seen:
                seen.add(config)
                yield config

    def _combine(self, limit: int | None) -> Iterator[tuple[Any, ...]]:
        count = math.prod(map(len, self.choices.values()))
        if limit is None or count <= limit:
            yield from itertools.product(*self.choices.values())
            return
        draw = random.Random(count)  # noqa: S311  # the same for every run of one request
        for _ in range(limit):
            yield tuple(map(draw.choice, self.choices.values()))


def nearest_choice(value: Any, choices: Sequence[Choice]) -> Any:
    """Take the nearest choice; the first one where the value says nothing."""
    if value in choices:
        return value
    numbers = [choice for choice in choices if isinstance(choice, int | float)]
    if value is None or isinstance(value, str) or not numbers:
        return choices[0]
    return min(numbers, key=lambda choice: abs(choice - value))
