"""Loaders of accelerate, transformers and Lightning in two training processes, which these libraries share out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.runner.trials import LIMITS, make_request, open_runner

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("leaves_nothing")]


@pytest.mark.parametrize(
    ("library", "factory", "options"),
    [
        ("accelerate", "make_prepared", {"is_loader": True}),
        ("transformers", "make_trainer_loader", {"is_loader": True}),
        ("lightning", "make_data_module", {}),
    ],
)
def test_a_loader_of_a_library_is_shared_out_among_the_ranks(
    library: str, factory: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip(library)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with open_runner("", dataset=f"tests.rank_libraries:{factory}", nproc_per_node=2, **options) as runner:
        runner.limit(LIMITS)
        result = runner.run(make_request(1))
    assert result.measurement is not None, (result.message, result.details)
    assert [rank.samples for rank in result.measurement.ranks] == [32, 32]
