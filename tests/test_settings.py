"""The settings table, and what follows from it."""

from __future__ import annotations

from typing import get_args

import pytest

from autotune.config import LoaderConfig, ProcessSettings
from autotune.profiles.export import export
from autotune.profiles.schema import TunedProfile
from autotune.report.render import render_html
from autotune.report.sections import load_code, plain_code
from autotune.settings import (
    SETTINGS,
    Setting,
    SettingName,
    config_from_values,
    describe_config,
    differing_settings,
    format_arguments,
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
def test_a_configuration_is_described_in_a_few_columns(config: LoaderConfig, text: str) -> None:
    assert describe_config(config) == text


def test_a_configuration_is_written_as_arguments_to_paste() -> None:
    config = make_config(4, 8, pin_memory=True, in_order=False)
    assert format_arguments(config) == "num_workers=4, prefetch_factor=8, pin_memory=True, in_order=False"


def test_the_table_has_every_setting_once_and_its_default_is_a_possible_value() -> None:
    assert list(SETTINGS) == list(get_args(SettingName))
    assert [one.check(one.default) for one in SETTINGS.values()] == [one.default for one in SETTINGS.values()]
    assert all(one.recommended in {one.default, *one.choices} for one in SETTINGS.values())


def make_tuned(setting: Setting) -> TunedProfile:
    """Build a profile in which a setting is not at PyTorch's default."""
    usual = setting_values(make_config(4, pin_memory=True))
    value = next(choice for choice in reversed(setting.choices) if choice != setting.default)
    config = config_from_values({**usual, setting.name: value})
    return make_profile(dataloader=config.dataloader, process=config.process)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda one: one.name)
def test_every_setting_is_in_the_exports_the_report_and_the_code_to_paste(setting: Setting) -> None:
    profile = make_tuned(setting)
    for target in ("json", "yaml"):
        assert setting.name in export(profile, target).text
    assert setting.name in render_html(profile, "dltune.json")
    line = setting.name if setting.setup is None else setting.setup.format(value=setting.read(profile.config))
    assert line in plain_code(profile)
    assert ".make_loader(" in load_code(profile, "dltune.json")


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda one: one.name)
def test_a_configuration_is_rebuilt_from_its_values(setting: Setting) -> None:
    config = make_tuned(setting).config
    rebuilt = config_from_values(setting_values(config), config.process.multiprocessing_context)
    assert rebuilt == config
    assert setting.name in differing_settings(config, make_config(0, batch_size=1))
