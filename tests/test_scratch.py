"""The private folder of a child: claimed while it is in use, swept when its owner is gone."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from autotune import child


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(child, "LONGEST_TMPDIR", 4096)
    return tmp_path


def test_a_folder_in_use_is_never_swept_whatever_process_number_it_carries(parent: Path) -> None:
    folder, claim = child._make_scratch()
    stranger = folder.rename(parent / "dltune-999999999-x")  # as another container that shares the folder sees it
    child._sweep_scratch(parent)
    assert stranger.exists()
    os.close(claim)


def test_a_folder_whose_owner_is_gone_is_swept(parent: Path) -> None:
    folder, claim = child._make_scratch()
    os.close(claim)  # as the kernel does when a process is killed
    child._sweep_scratch(parent)
    assert not folder.exists()


def test_a_folder_that_was_just_made_is_left_for_its_owner_to_claim(parent: Path) -> None:
    fresh, old = parent / "dltune-1-fresh", parent / "dltune-1-old"
    for folder in (fresh, old):
        folder.mkdir()
    long_ago = time.time() - 3600
    os.utime(old, (long_ago, long_ago))
    child._sweep_scratch(parent)
    assert fresh.exists()
    assert not old.exists()
    shutil.rmtree(fresh)
