from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from autotune.child.reading_traces import ProcessState, describe_traces, find_traces
from autotune.trial.protocol import Traces


def test_reading_that_leaves_nothing_leaves_no_traces(tmp_path: Path) -> None:
    before = ProcessState.read()
    (tmp_path / "file").write_text("read and closed")
    assert find_traces(before) == Traces()
    assert describe_traces(find_traces(before)) is None


def test_a_thread_that_goes_on_is_a_trace_that_training_should_mind() -> None:
    ended = threading.Event()
    before = ProcessState.read()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    traces = find_traces(before)
    ended.set()
    thread.join()
    assert traces == Traces(threads=True, pools=True)
    assert "leaves threads behind" in (describe_traces(traces) or "")


def test_a_file_that_stays_open_is_a_trace_but_no_news(tmp_path: Path) -> None:
    before = ProcessState.read()
    with (tmp_path / "file").open("w"):
        traces = find_traces(before)
    assert traces == Traces(files=True)
    assert describe_traces(traces) is None


def test_a_file_that_only_garbage_holds_open_is_none(tmp_path: Path) -> None:
    before = ProcessState.read()
    held = [(tmp_path / "file").open("w")]
    held.append(held)  # type: ignore[arg-type]  # a cycle
    del held
    with pytest.warns(ResourceWarning):
        assert find_traces(before) == Traces()


def test_threads_unknown_to_python_count_where_a_library_is_there_that_loses_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = ProcessState.read()._replace(all_threads=0)
    monkeypatch.delitem(sys.modules, "polars", raising=False)
    monkeypatch.delitem(sys.modules, "tokenizers", raising=False)
    assert find_traces(before) == Traces(pools=True)
    monkeypatch.setitem(sys.modules, "polars", ModuleType("polars"))
    assert find_traces(before).threads
