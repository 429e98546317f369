"""GPU tests: they need a CUDA device, and say so where there is none."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def needs_cuda(leaves_nothing: None) -> None:
    """Skip where torch finds no CUDA device, with the reason; where it does, prove that nothing is left behind."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device and a CUDA build of torch")
