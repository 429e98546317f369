"""Configurations in words, as the table of knobs has them."""

from __future__ import annotations

import pytest

from autotune.config import LoaderConfig, ProcessSettings
from autotune.knobs import describe_config, describe_loader
from tests.builders import make_config

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
    settings = make_config(4, 8, pin_memory=True, in_order=False).dataloader
    assert describe_loader(settings) == "num_workers=4 prefetch_factor=8 pin_memory in_order=False"
    assert describe_loader(make_config(0).dataloader) == "num_workers=0"
