"""Real libraries whose threads or locks do not survive a fork: a hang is told with the cause and what helps."""

from __future__ import annotations

import pytest

from tests.faults.stage import LIMITS, Play, Scene, run


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
    result = run(f"faults.hostile:make_{library}", stall_seconds=4.0)
    assert result.kind == "stalled", result.message
    assert advice in result.message
    assert "hangs in" in result.message


@pytest.mark.fault("Fork after a library's threads", needs="plain")
def test_what_only_workers_would_use_is_not_used_before_they_are_forked() -> None:
    pytest.importorskip("polars")
    with Scene(factory="faults.hostile:make_lazy_polars", stall_seconds=8.0).open_runner() as runner:
        profile = runner.probe((8, 8), LIMITS)
        results = [runner.run(Play(workers=workers).to_request()) for workers in (2, 0, 2)]
    assert profile.worker_failure is None
    assert [result.kind for result in results] == ["completed"] * 3
