from __future__ import annotations

from pathlib import Path

import pytest

from autotune.system.hardware import read_gpus
from tests.builders import write_files

TWO_GPUS = {
    "driver/nvidia/gpus/0000:05:00.0/information": "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-aaaa-1\n",
    "driver/nvidia/gpus/0000:3b:00.0/information": "Model: \t\t NVIDIA A100\nGPU UUID: \t GPU-bbbb-2\n",
}


def test_gpus_are_named_in_the_order_of_their_slots(tmp_path: Path) -> None:
    folder = "driver/nvidia/gpus"
    proc = write_files(
        tmp_path,
        {
            f"{folder}/0000:3b:00.0/information": "Model: \t\t NVIDIA A100\nIRQ:   1\n",
            f"{folder}/0000:05:00.0/information": "Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t GPU-1\n",
        },
    )
    assert read_gpus(proc) == ("NVIDIA H100 80GB HBM3", "NVIDIA A100")


def test_a_machine_without_the_driver_has_no_gpu(tmp_path: Path) -> None:
    assert read_gpus(tmp_path) == ()


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("0,1", ("NVIDIA H100", "NVIDIA A100")),
        ("1", ("NVIDIA A100",)),
        ("GPU-bbbb", ("NVIDIA A100",)),
        ("1,7,0", ("NVIDIA A100",)),
        ("", ()),
        ("-1", ()),
        ("MIG-cccc", ("NVIDIA H100 MIG",)),
    ],
)
def test_only_visible_gpus_count(visible: str, names: tuple[str, ...], tmp_path: Path) -> None:
    proc = write_files(tmp_path, TWO_GPUS)
    assert read_gpus(proc, {"CUDA_VISIBLE_DEVICES": visible}) == names
