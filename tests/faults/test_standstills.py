"""Real libraries whose threads or locks do not survive a fork: a hang is told with the cause and what helps."""

from __future__ import annotations

import pytest

from tests.faults.stage import run


@pytest.mark.parametrize(
    ("library", "advice"),
    [
        ("tokenizers", "TOKENIZERS_PARALLELISM=false"),
        ("polars", "Polars' threads do not survive a fork"),
        ("h5py", "open the file in the worker"),
    ],
)
@pytest.mark.fault("Fork after a library's threads", needs="plain")
def test_a_library_that_does_not_survive_a_fork_is_named_with_what_helps(
    library: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(library)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")  # else tokenizers give it up by themselves after a fork
    result = run(f"faults.standstills:make_{library}", stall_seconds=4.0)
    assert result.kind == "stalled", result.message
    assert advice in result.message
    assert "stands in" in result.message
