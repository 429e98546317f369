"""The table of searched settings, and operations on configurations that derive from it.

A new setting is a field of `config.DataLoaderSettings` or `config.ProcessSettings`, an entry here, and the code that
applies it (`child/` in trials, `profiles/load.py` in training). The search space, the models, the report, the exports
and the documentation derive from the entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import TypeAdapter

from autotune.config import DataLoaderSettings, LoaderConfig, ProcessSettings, SharingStrategy, StartMethod

Choice = int | bool | str | None
SettingName = Literal[
    "batch_size",
    "num_workers",
    "prefetch_factor",
    "pin_memory",
    "persistent_workers",
    "in_order",
    "sharing_strategy",
    "device_prefetch",
    "worker_threads",
]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting that is searched."""

    name: str  # in DataLoader, in dltune.json and on the command line
    description: str  # one sentence for the documentation
    choices: tuple[Any, ...] = (False, True)  # values to search unless workload, machine or user restrict them
    default: Any = False  # PyTorch's, once the setting that it needs is on
    recommended: Any = False  # used unless a measurement shows that another value is faster
    needs: Literal["num_workers", "pin_memory"] | None = None  # the setting without which it has no effect
    is_range: bool = False  # whether it is a number that `--search NAME=LOW:HIGH` restricts
    changes_training: bool = False  # and not only its speed
    heading: str = ""  # of its column in the table of trials; others are shown when they are not at their default
    label: str = ""  # short form, as in `w=11 pf=4`; for a switch, the word shown when it is not at its default
    instruction: str | None = None  # change of the training code, in addition to the DataLoader's arguments
    setup: str | None = None  # the line of code for that, when the value is not the default

    @property
    def section(self) -> Literal["dataloader", "process"]:
        """The part of a configuration that holds it."""
        return "dataloader" if self.name in DataLoaderSettings.model_fields else "process"

    def read(self, config: LoaderConfig) -> Any:
        """Return its value in a configuration; PyTorch's default if the configuration leaves it unset."""
        value = getattr(getattr(config, self.section), self.name)
        return self.default if value is None and self.needs is not None else value

    def is_active(self, config: LoaderConfig) -> bool:
        """Return whether it has a value that takes effect in a configuration."""
        return self.read(config) is not None and (self.needs is None or bool(SETTINGS[self.needs].read(config)))

    def check(self, value: Any) -> Choice:
        """Return a value as a configuration holds it; raise pydantic.ValidationError if it cannot have this value."""
        model = (DataLoaderSettings.model_fields | ProcessSettings.model_fields)[self.name]
        value = str(value) if self.is_range and isinstance(value, bool) else value  # pydantic takes True for 1
        adapter: TypeAdapter[Choice] = TypeAdapter(Annotated[model.annotation, *model.metadata, None])  # type: ignore[arg-type]  # a type made at run time
        return adapter.validate_python(value)


_TABLE: Final = (  # in the usual order of manual tuning
    Setting(
        "batch_size",
        choices=(16, 32, 64, 128, 256, 512),
        default=1,
        recommended=32,
        description="Samples per batch and process.",
        is_range=True,
        changes_training=True,
        heading="batch",
        label="bs",
    ),
    Setting(
        "num_workers",
        choices=(
            *range(9),
            10,
            12,
            14,
            *range(16, 32, 4),
            *range(32, 64, 8),
            *range(64, 128, 16),
            *range(128, 513, 32),
        ),
        default=0,
        recommended=0,
        description="Worker processes; 0 loads in the main process.",
        is_range=True,
        heading="workers",
        label="w",
    ),
    Setting(
        "prefetch_factor",
        choices=(1, 2, 4, 8),
        default=2,
        recommended=2,
        description="Batches that each worker loads in advance.",
        needs="num_workers",
        is_range=True,
        heading="prefetch",
        label="pf",
    ),
    Setting(
        "pin_memory",
        recommended=True,
        description="Copies batches into page-locked memory, from which a GPU copies faster.",
        heading="pin",
        label="pin",
    ),
    Setting(
        "persistent_workers",
        recommended=True,
        description="Keeps the workers alive between epochs.",
        needs="num_workers",
        heading="persistent",
        label="persistent",
    ),
    Setting(
        "in_order",
        default=True,
        recommended=True,
        description="Returns batches in the order of the sampler.",
        needs="num_workers",
        changes_training=True,
        label="out-of-order",
    ),
    Setting(
        "sharing_strategy",
        choices=get_args(SharingStrategy),
        default="file_descriptor",
        recommended="file_descriptor",
        description="How workers share tensors with the main process (torch.multiprocessing).",
        needs="num_workers",
        label="file_system",
        instruction='call torch.multiprocessing.set_sharing_strategy("{value}") before the first worker starts, '
        "and in worker_init_fn too if workers are not forked",
        setup="torch.multiprocessing.set_sharing_strategy({value!r})",
    ),
    Setting(
        "device_prefetch",
        description="Copies the next batch to the GPU while the step computes (`autotune.device_prefetch`).",
        needs="pin_memory",
        label="device-prefetch",
        instruction="iterate over autotune.device_prefetch(loader, device) instead of the loader",
    ),
    Setting(
        "worker_threads",
        choices=(None, 1),
        default=None,
        recommended=None,
        description="Threads that libraries may use in each worker.",
        needs="num_workers",
        label="1-thread",
        instruction="limit each library that starts threads to {value} in worker_init_fn: cv2.setNumThreads({value})",
        setup="# in worker_init_fn: cv2.setNumThreads({value!r}), or the equivalent of the library that starts threads",
    ),
)
SETTINGS: Final[Mapping[str, Setting]] = {setting.name: setting for setting in _TABLE}
RANGES: Final = tuple(setting for setting in _TABLE if setting.is_range)
SWITCHES: Final = tuple(setting for setting in _TABLE if not setting.is_range)


def setting_values(config: LoaderConfig) -> dict[str, Any]:
    """Return the value of every setting of a configuration, by name."""
    return {setting.name: setting.read(config) for setting in _TABLE}


def config_from_values(values: Mapping[str, Any], start_method: StartMethod | None = None) -> LoaderConfig:
    """Build a legal configuration from a value for every setting; settings without effect keep their default."""
    parts: dict[str, dict[str, Any]] = {"dataloader": {}, "process": {"non_blocking": values["pin_memory"]}}
    for setting in _TABLE:
        if setting.needs is None or values[setting.needs]:
            parts[setting.section][setting.name] = values[setting.name]
    return LoaderConfig(
        dataloader=DataLoaderSettings(**parts["dataloader"]),
        process=ProcessSettings(multiprocessing_context=start_method, **parts["process"]),
    )


def differing_settings(config: LoaderConfig, other: LoaderConfig) -> tuple[str, ...]:
    """Return the names of the settings in which two configurations differ."""
    return tuple(setting.name for setting in _TABLE if setting.read(config) != setting.read(other))


def describe_difference(config: LoaderConfig, other: LoaderConfig) -> str:
    """Write the settings in which a configuration differs from another, as in `prefetch_factor=4, in_order=False`."""
    return ", ".join(f"{name}={SETTINGS[name].read(config)!r}" for name in differing_settings(config, other))


def describe_config(config: LoaderConfig) -> str:
    """Describe a configuration in a few columns, as in `w=11 pf=4 bs=64 pin persistent`."""
    order = (SETTINGS[name] for name in ("num_workers", "prefetch_factor", "batch_size"))
    words = [f"{setting.label}={setting.read(config)}" for setting in order if setting.is_active(config)]
    return " ".join([*words, *(setting.label for setting in SWITCHES if setting.read(config) != setting.default)])


def format_arguments(config: LoaderConfig, *, with_batch_size: bool = False) -> str:
    """Write a configuration as arguments to paste: numbers, and switches that are not at PyTorch's default."""
    shown = [one for one in _TABLE if one.is_active(config) and (one.is_range or one.read(config) != one.default)]
    names = [one.name for one in shown if one.name != "batch_size" or with_batch_size]
    return ", ".join(f"{name}={SETTINGS[name].read(config)!r}" for name in names)
