"""Configurations in words, as the table of knobs has them."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from autotune.config import KnobValue, LoaderConfig, ProcessSettings
from autotune.profiles.export import export
from autotune.profiles.schema import TunedProfile
from autotune.profiles.export import TARGETS, Target
from autotune.report.summary import list_settings
from autotune.report.usage import describe_use_in_code, usage_snippet_without_dltune
from autotune.settings import SETTINGS, Setting, SettingName, config_from_values, describe_config, describe_loader, differing_settings, setting_values,
    Setting,
    SettingName,
    config_from_values,
    describe_config,
    describe_loader,
    differing_settings,
    setting_values,
)
from tests.builders import make_config, make_profile

FILE_SYSTEM = ProcessSettings(sharing_strategy="file_system")


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (make_config(0), "w=0 bs=32"),
        (make_config(11, 4, 64, pin_memory=True, persistent_workers=True), "w=11 pf=4 bs=64 pin persistent"),
        (make_config(2, 1, None, in_order=False, process=FILE_SYSTEM), "w=2 pf=1 out-of-order file_system"),
    ],
)
def test_a_configuration_is_described_by_what_differs_from_the_defaults(config: LoaderConfig, text: str) -> None:
    assert describe_config(config) == text


def test_settings_are_described_by_the_names_that_data_loader_uses() -> None:
    assert (
        describe_loader(make_config(4, 8, pin_memory=True, in_order=False))
        == "num_workers=4 prefetch_factor=8 pin_memory in_order=False"
    )
    assert describe_loader(make_config(0)) == "num_workers=0"


# Whatever is searched must be told to those who train


def make_tuned(knob: Setting) -> TunedProfile:
    """Build a profile in which a knob has another value than PyTorch gives it."""
    usual = setting_values(make_config(4, pin_memory=True))
    value = next(choice for choice in reversed(knob.choices) if choice != knob.default)
    config = config_from_values({**usual, knob.name: value})
    return make_profile(dataloader=config.dataloader, process=config.process)


def test_the_table_holds_every_name_once_and_each_default_is_a_value_that_a_configuration_takes() -> None:
    assert list(SETTINGS) == list(get_args(SettingName))
    assert [knob.check(knob.default) for knob in SETTINGS.values()] == [knob.default for knob in SETTINGS.values()]


@pytest.mark.parametrize("knob", SETTINGS.values(), ids=lambda knob: knob.name)
def test_what_a_knob_was_set_to_is_told_by_every_export_the_page_and_the_line_to_copy(knob: Setting) -> None:
    profile = make_tuned(knob)
    for target in TARGETS:
        found = export(profile, target, force=True)
        is_unheld = knob.name in {setting.field for setting in found.unheld}
        name = knob.export_names.get(target, knob.name)
        assert is_unheld or name in found.text or name.upper() in found.text
    assert {setting.name: setting.value for setting in list_settings(profile)}[knob.name] == str(
        knob.read(profile.config)
    )
    line = describe_use_in_code(profile, "map", "dltune.json")
    assert ".make_loader(" in line  # which applies what is set beside the loader
    assert ("device_prefetch" in line) == (knob.name == "device_prefetch")


# Knobs of the user's own


OWN: dict[str, KnobValue] = {"cache_size": 256, "decoder": "cv2"}


def make_own(**identity: Any) -> TunedProfile:
    profile = make_profile()
    workload = profile.workload.model_copy(update={"dataset": "data.images:make", **identity})
    config = profile.config.model_copy(update={"knobs": OWN})
    return profile.model_copy(update={"config": config, "workload": workload})


def test_a_configuration_with_knobs_of_the_users_own_is_written_read_and_told_apart_by_them() -> None:
    config = make_config(2).model_copy(update={"knobs": {"a": True, "b": 1.0, "c": 1, "d": "1"}})
    read = LoaderConfig.model_validate_json(config.model_dump_json())
    assert read == config
    assert hash(read) == hash(config)
    assert [type(value) for value in read.knobs.values()] == [bool, float, int, str]
    assert "knobs" not in make_config(2).model_dump_json()
    assert config_from_values(setting_values(config)) == config
    assert differing_settings(config, make_config(2)) == ("a", "b", "c", "d")
    assert describe_config(config) == "w=2 pf=2 bs=32 a=True b=1.0 c=1 d=1"


@pytest.mark.parametrize("target", TARGETS)
def test_every_export_holds_knobs_of_the_users_own_or_says_who_is_to_be_given_them(target: Target) -> None:
    found = export(make_own(), target)
    for name, value in OWN.items():
        is_held = name in found.text or name.upper() in found.text
        assert is_held or f"{name}={value!r} is not held: give it to data.images:make." in found.notes


def test_the_page_shows_knobs_of_the_users_own() -> None:
    shown = {setting.name: setting.value for setting in list_settings(make_own())}
    assert (shown["cache_size"], shown["decoder"]) == ("256", "cv2")


@pytest.mark.parametrize(
    ("maker", "line", "lines"),
    [
        (
            None,
            '(tuned := autotune.load("dltune.json")).make_loader(make(**tuned.knobs), shuffle=True)',
            "    make(cache_size=256, decoder='cv2'),\n    shuffle=True,",
        ),
        (
            "data.images:make",
            'autotune.load("dltune.json").make_loader(make)',
            "    cache_size=256,\n    decoder='cv2',",
        ),
    ],
)
def test_the_code_to_copy_gives_the_users_factory_its_knobs(maker: str | None, line: str, lines: str) -> None:
    profile = make_own(loader_class=maker)
    assert describe_use_in_code(profile, "map", "dltune.json") == line
    assert lines in usage_snippet_without_dltune(profile)
