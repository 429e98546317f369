from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.child.page_cache import ColdFiles
from autotune.child.sample_reads import measure_read
from autotune.errors import UsageError
from autotune.system.mounts import find_mount
from tests.builders import MIB
from tests.runner.trials import LIMITS, make_request, open_runner


def is_on_disk(folder: Path) -> bool:
    mount = find_mount(folder)
    return mount is not None and mount.kind == "local"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Write a file of a few MiB, which is in memory then."""
    if not is_on_disk(tmp_path):
        pytest.skip("the folder for temporary files is not on a disk of this machine")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "data.bin").write_bytes(bytes(range(256)) * (4 * MIB // 256))
    return tmp_path


def test_a_file_that_was_dropped_is_read_from_the_storage(data: Path) -> None:
    file = data / "more" / "data.bin"
    cold = ColdFiles(str(data))
    cold.drop()
    _, first = measure_read(file.read_bytes)
    _, second = measure_read(file.read_bytes)
    assert first.storage_bytes >= 4 * MIB
    assert second.storage_bytes < MIB  # a page of the interpreter's own may be read meanwhile


def test_what_is_dropped_is_told_with_whether_that_works(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (ColdFiles(str(data)).describe() or "").startswith("--cold: 1 files of 4.0 MiB are dropped from memory")
    monkeypatch.setattr("os.posix_fadvise", lambda *arguments: None)
    cold = ColdFiles(str(data))
    (data / "more" / "data.bin").read_bytes()
    assert "could not be dropped from memory here" in (cold.describe() or "")


def test_nothing_is_dropped_unasked() -> None:
    cold = ColdFiles(None)
    cold.drop()
    assert cold.describe() is None


@pytest.mark.parametrize(("place", "words"), [("nowhere", "no such file"), (".", "no file that can be read")])
def test_a_place_without_files_is_refused(tmp_path: Path, place: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ColdFiles(str(tmp_path / place))


@pytest.mark.parametrize("is_cold", [True, False])
@pytest.mark.usefixtures("leaves_nothing")
def test_each_epoch_of_a_trial_reads_the_storage_where_that_is_asked_for(data: Path, is_cold: bool) -> None:
    options: dict[str, Any] = {"dataset": "tests.reading:make_reading", "dataset_args": {"folder": str(data)}}
    with open_runner("", cold=str(data / "more") if is_cold else None, **options) as runner:
        runner.limit(LIMITS)
        result = runner.run(make_request(0))
    assert result.measurement is not None, (result.message, result.details)
    from_storage = int((data / "storage_bytes").read_text())
    assert from_storage >= 8 * MIB if is_cold else from_storage == 0  # two epochs of four
