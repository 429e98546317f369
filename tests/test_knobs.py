"""Configurations in words, as the table of knobs has them."""

from __future__ import annotations

from typing import get_args

import pytest

from autotune.config import LoaderConfig, ProcessSettings
from autotune.knobs import (
    KNOBS,
    TABLE,
    Knob,
    KnobName,
    config_from_knobs,
    describe_config,
    describe_loader,
    knob_values,
)
from autotune.profiles.export import TARGETS, export
from autotune.profiles.schema import TunedProfile
from autotune.report.summary import list_settings
from autotune.report.usage import describe_use_in_code
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


def make_tuned(knob: Knob) -> TunedProfile:
    """Build a profile in which a knob has another value than PyTorch gives it."""
    usual = knob_values(make_config(4, pin_memory=True))
    value = next(choice for choice in reversed(knob.choices) if choice != knob.default)
    config = config_from_knobs({**usual, knob.name: value})
    return make_profile(dataloader=config.dataloader, process=config.process)


def test_the_table_holds_every_name_once_and_each_default_is_a_value_that_a_configuration_takes() -> None:
    assert list(KNOBS) == list(get_args(KnobName))
    assert [knob.check(knob.default) for knob in TABLE] == [knob.default for knob in TABLE]


@pytest.mark.parametrize("knob", TABLE, ids=lambda knob: knob.name)
def test_what_a_knob_was_set_to_is_told_by_every_export_the_page_and_the_line_to_copy(knob: Knob) -> None:
    profile = make_tuned(knob)
    for target in TARGETS:
        found = export(profile, target, force=True)
        is_unheld = knob.name in {setting.field for setting in found.unheld}
        name = knob.export_names.get(target, knob.name)
        assert is_unheld or name in found.text or name.upper() in found.text
    assert {setting.name: setting.value for setting in list_settings(profile)}[knob.name] == str(
        knob.read(profile.config)
    )
    plain = describe_use_in_code(make_profile(), "map", "dltune.json")
    if knob.section == "process":
        assert describe_use_in_code(profile, "map", "dltune.json") != plain
