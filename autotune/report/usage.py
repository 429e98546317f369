"""The training code that puts a tuned configuration in force."""

from __future__ import annotations

import json

from autotune.profiles.schema import TunedProfile
from autotune.settings import SETTINGS


def describe_use_in_code(profile: TunedProfile, kind: str, output: str) -> str:
    """Write it in one line; only a dataset of kind `map` can be shuffled by a loader."""
    tuned = f'autotune.load("{output}")'
    return _write_loader(profile, kind, f"(tuned := {tuned})" if _makes_dataset(profile) else tuned)


def usage_snippet(profile: TunedProfile, file: str) -> str:
    """Write the code that loads the answer from its file, in lines that a phone need not break within a word."""
    loader = _write_loader(profile, profile.workload.kind or "map", "tuned")
    return f'import autotune\ntuned = autotune.load("{file}")\nloader = {loader}'


def _write_loader(profile: TunedProfile, kind: str, tuned: str) -> str:
    """Write what makes the loader, given what the tuned configuration is called."""
    given, choice = _list_given(profile, kind), ""
    if profile.workload.loader_class is not None:
        given = [_name_maker(profile), *given]
        choice = _write_choice(profile) if profile.workload.is_function_made else ""
    elif _makes_dataset(profile):
        given[0] = f"{_name_factory(profile)}(**tuned.knobs){_write_choice(profile)}"
    made = f"{tuned}.make_loader({', '.join(given)}){choice}"
    return f"autotune.device_prefetch({made}, device)" if profile.process.device_prefetch else made


def _makes_dataset(profile: TunedProfile) -> bool:
    """Whether training code must make the dataset with tuned arguments."""
    return bool(profile.config.knobs) and profile.workload.loader_class is None


def usage_snippet_without_dltune(profile: TunedProfile) -> str:
    """Write the code that says the answer without dltune."""
    set_up = [
        (knob.setup, knob.read(profile.config))
        for knob in SETTINGS.values()
        if knob.read(profile.config) != knob.default
    ]
    lines = [code.format(value=value) for code, value in set_up if code is not None]
    settings = profile.workload.leave_out_decided(profile.config.loader_kwargs())
    given = _list_given(profile, profile.workload.kind or "map")
    if profile.workload.is_function_made:
        settings |= profile.config.knobs
    elif profile.config.knobs and profile.workload.loader_class is None:
        own = ", ".join(f"{name}={value!r}" for name, value in profile.config.knobs.items())
        given[0] = f"{_name_factory(profile)}({own}){_write_choice(profile)}"
    arguments = [
        *given,
        *(f"{name}={value!r}" for name, value in settings.items()),
    ]
    end = f"){_write_choice(profile) if profile.workload.is_function_made else ''}"
    lines += [f"loader = {_name_maker(profile)}(", *(f"    {argument}," for argument in arguments), end]
    if profile.process.device_prefetch:
        lines.append("loader = autotune.device_prefetch(loader, device)")
    return "\n".join(lines)


def _list_given(profile: TunedProfile, kind: str) -> list[str]:
    """List what training code gives a loader beside the settings."""
    if profile.workload.loader_class is not None:
        is_told = profile.workload.is_function_made and not profile.workload.dataset_args
        return [] if is_told else ["**your_own_arguments"]
    if profile.dataloader.batch_size is None:
        return ["dataset", "**your_own_batching"]
    return ["dataset", "shuffle=True"] if kind != "iterable" else ["dataset"]  # which DataLoader refuses to shuffle


def _write_choice(profile: TunedProfile) -> str:
    """Write what takes the tuned one of several loaders or datasets that the factory returns."""
    name = profile.workload.split
    if name is None:
        return ""
    return f"[{name if name.isdecimal() else json.dumps(name)}]"


def _name_factory(profile: TunedProfile) -> str:
    """Name the factory of the dataset, without its module."""
    return profile.workload.dataset.replace(":", ".").rpartition(".")[2]


def _name_maker(profile: TunedProfile) -> str:
    """Name the class of the loader, or the function that makes it, without its module where that says who is meant."""
    name = profile.workload.loader_class or "DataLoader"
    short = name.replace(":", ".").rpartition(".")[2]
    return name if short == "DataLoader" else short
