from __future__ import annotations

from pathlib import Path

from autotune.child.probe_storage import SampleRead, describe_storage, measure_read
from tests.builders import GIB, MIB

WARM = SampleRead(0.002, read_bytes=MIB)
COLD = SampleRead(0.010, read_bytes=MIB, storage_bytes=MIB)
MILLION = 1_000_000


def test_an_epoch_that_memory_cannot_hold_is_told_with_what_came_from_memory() -> None:
    words = describe_storage([WARM] * 20, MILLION, 64 * GIB) or ""
    assert "An epoch reads about 977 GiB, and memory has 64.0 GiB" in words
    assert "100% of the bytes of 19 samples" in words


def test_an_epoch_that_memory_holds_is_warm_in_training_too() -> None:
    assert describe_storage([WARM] * 20, 1000, 64 * GIB) is None


def test_samples_that_came_from_the_storage_here_are_what_training_will_meet() -> None:
    assert describe_storage([COLD] * 20, MILLION, 64 * GIB) is None


def test_samples_that_read_nothing_need_no_storage() -> None:
    assert describe_storage([SampleRead(0.01)] * 20, MILLION, GIB) is None


def test_a_few_samples_say_nothing() -> None:
    assert describe_storage([WARM] * 4, MILLION, GIB) is None


def test_the_bytes_of_a_sample_are_counted_by_the_kernel(tmp_path: Path) -> None:
    file = tmp_path / "sample"
    file.write_bytes(b"x" * MIB)
    value, read = measure_read(file.read_bytes)
    assert len(value) == MIB
    assert MIB <= read.read_bytes < 2 * MIB
    assert read.seconds > 0
