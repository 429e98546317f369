"""Exports a configuration to other libraries, by the argument names of their sources; no library is imported here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from autotune.config import DataLoaderSettings, LoaderConfig, ProcessSettings
from autotune.errors import UsageError
from autotune.profiles.schema import TunedProfile, WorkloadIdentity
from autotune.settings import SETTINGS

if TYPE_CHECKING:
    from autotune.profiles.load import TunedLoader

Library = Literal["hf", "lightning", "accelerate", "timm", "statefuldataloader"]
Target = Literal[Library, "json", "yaml"]
Arguments = Mapping[str, Any]
LIBRARIES: Final[tuple[Library, ...]] = get_args(Library)
TARGETS: Final[tuple[Target, ...]] = get_args(Target)
LOADER_ARGUMENTS: Final = (*DataLoaderSettings.model_fields, "multiprocessing_context")
INSTRUCTIONS: Final = {
    "multiprocessing_context": 'call torch.multiprocessing.set_start_method("{value}") first',
    "non_blocking": "copy batches with batch.to(device, non_blocking=True)",
} | {setting.name: setting.instruction for setting in SETTINGS.values() if setting.instruction is not None}
_SAME: Final = {name: name for name in LOADER_ARGUMENTS}
WORKER_SETTINGS: Final = {
    one.name: one.default for one in SETTINGS.values() if one.section == "process" and one.needs == "num_workers"
}
_EVERY: Final = _SAME | {name: name for name in ProcessSettings.model_fields}


@dataclass(frozen=True, slots=True)
class Export:
    """A configuration in the format of one target."""

    text: str
    notes: tuple[str, ...]  # unsupported settings and other remarks, which are also comments if the format has them


def _write_python(arguments: Arguments) -> str:
    return "\n".join(["{", *(f"    {json.dumps(name)}: {value!r}," for name, value in arguments.items()), "}"])


def _write_yaml(arguments: Arguments, indent: str = "") -> str:
    return "\n".join(f"{indent}{name}: {json.dumps(value)}" for name, value in arguments.items())


def _write_flags(arguments: Arguments) -> str:
    return " ".join(n if value is True else f"{n} {value}" for n, value in arguments.items() if value is not False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Format:
    """How one target names the settings."""

    reader: str  # the class or program that takes the arguments
    names: Mapping[str, str]  # of the settings that it supports; `a.b` is the entry b of the argument a
    write: Callable[[Arguments], str] = _write_python
    defaults: Arguments = field(default_factory=dict)  # for arguments that the configuration does not have
    implied: Arguments = field(default_factory=dict)  # values of other settings that it uses anyway
    skipped: tuple[str, ...] = ()  # settings of the loader that the user makes
    batches: str = ""  # why it needs a batch size, if it makes batches itself
    hint: str = ""
    has_comments: bool = True


_FORMATS: Final[Mapping[Target, _Format]] = {
    "hf": _Format(
        reader="transformers.TrainingArguments",
        names={name: f"dataloader_{name}" for name in LOADER_ARGUMENTS}
        | {"batch_size": "per_device_train_batch_size", "non_blocking": "accelerator_config.non_blocking"},
        write=_write_yaml,
        batches="the Trainer makes batches of per_device_train_batch_size, 8 by default",
    ),
    "lightning": _Format(
        reader="lightning.pytorch.cli.LightningCLI",
        names=_SAME,
        write=lambda arguments: f"data:\n{_write_yaml(arguments, '  ')}",
        implied={"non_blocking": True},
        hint="These are arguments of your DataModule's __init__; with a class_path they belong under init_args.",
    ),
    "accelerate": _Format(
        reader="accelerate.utils.DataLoaderConfiguration",
        names={"non_blocking": "non_blocking", "split_batches": "split_batches"},
        defaults={"split_batches": False},  # keeps the batch size per process
        skipped=(*LOADER_ARGUMENTS, *WORKER_SETTINGS),
        hint="Make the loader with autotune.load(...).make_loader(dataset): Accelerator.prepare() keeps its settings.",
    ),
    "timm": _Format(
        reader="timm's train.py",
        names={"num_workers": "--workers", "pin_memory": "--pin-mem", "batch_size": "--batch-size"},
        write=_write_flags,
        implied={"prefetch_factor": 2, "in_order": True}
        | dict.fromkeys(("persistent_workers", "non_blocking", "device_prefetch"), True),
        batches="timm makes batches of --batch-size, 128 by default",
        has_comments=False,
    ),
    "statefuldataloader": _Format(
        reader="torchdata.stateful_dataloader.StatefulDataLoader",
        names=_SAME,
        hint="snapshot_every_n_steps was not tuned.",
    ),
    "json": _Format(reader="your own code", names=_EVERY, write=partial(json.dumps, indent=2), has_comments=False),
    "yaml": _Format(reader="your own code", names=_EVERY, write=_write_yaml),
}
_CREATE_LOADER: Final = replace(
    _FORMATS["timm"],
    reader="timm.data.create_loader",
    names={name: name for name in ("batch_size", "num_workers", "pin_memory", "persistent_workers")},
    defaults={"persistent_workers": False},  # its own is True, which versions before 1.0.29 pass without workers, too
)


def export(profile: TunedProfile | TunedLoader, to: Target) -> Export:
    """Export a configuration in another library's format, as tuned: it is not scaled down to this machine."""
    if not isinstance(profile, TunedProfile):
        profile = profile.profile
    if to not in TARGETS:
        raise UsageError(f"{to!r} is not one of {', '.join(TARGETS)}.")
    target, size = _FORMATS[to], profile.dataloader.batch_size
    arguments, unsupported = _translate(target, profile.workload, profile.config)
    batches = "" if size is None else f"The batch size is per process: N processes use N x {size} samples per step."
    notes = tuple(note for note in (batches, target.hint, *unsupported) if note)
    tuned = f"tuned by dltune {profile.software.dltune} on {profile.created_at:%Y-%m-%d}"
    source = repr(f"profile {profile.id} of {profile.workload.title}, {tuned}")  # a line break must not end the comment
    comments = [f"# For {target.reader}: {source[1:-1]}.", *(f"# {note}" for note in notes)]
    return Export("\n".join([*(comments if target.has_comments else ()), target.write(arguments), ""]), notes)


def translate(workload: WorkloadIdentity, config: LoaderConfig, library: Library) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments for a library that makes the loader itself, and notes on unsupported settings."""
    if library not in LIBRARIES:
        raise UsageError(f"{library!r} is not one of {', '.join(LIBRARIES)}.")
    target = _CREATE_LOADER if library == "timm" else _FORMATS[library]
    return _translate(target, workload, config)


def _translate(target: _Format, workload: WorkloadIdentity, config: LoaderConfig) -> tuple[dict[str, Any], list[str]]:
    active = (one for one in SETTINGS.values() if one.section == "process" and one.is_active(config))
    process = {one.name: one.read(config) for one in active if one.read(config) is not False}
    copies = {"non_blocking": True} if config.process.non_blocking else {}
    settings = {**target.defaults, **workload.accepted(config.loader_kwargs() | copies | process)}
    if settings.get("in_order") is True and target.names is not _EVERY:
        del settings["in_order"]  # the default; older versions of libraries reject the argument
    arguments: dict[str, Any] = {}
    for name in filter(target.names.__contains__, settings):
        outer, _, inner = target.names[name].partition(".")
        arguments[outer] = {inner: settings[name]} if inner else settings[name]
    implied = {**WORKER_SETTINGS, **target.implied}
    advice = INSTRUCTIONS | {name: f"it uses {value}" for name, value in target.implied.items()}
    notes = [
        f"{name}={value!r} is not supported by {target.reader}: {advice[name].format(value=value)}."
        for name, value in settings.items()
        if name not in target.names and name not in target.skipped and implied.get(name) != value
    ]
    if target.batches and "batch_size" not in settings:
        notes.insert(0, f"The profile has no batch size, and {target.batches}.")
    if target is _FORMATS["timm"] and not config.dataloader.num_workers:
        notes.append("timm before 1.0.29 fails with --workers 0: upgrade it, or use --workers 1.")
    if target is _FORMATS["statefuldataloader"] and not config.dataloader.in_order:
        notes.append("With in_order=False, StatefulDataLoader does not guarantee to resume at the same sample.")
    return arguments, notes
