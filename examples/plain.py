"""A training script in plain PyTorch, which knows nothing of dltune: samples that wait, and the default loader.

dltune run examples/plain.py --epochs 3
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from torch.utils.data import DataLoader

from examples.tutorial import make_dataset


def main() -> None:
    """Train a small network, and print the throughput of each epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(make_dataset(samples=6400), batch_size=32, shuffle=True)
    model = torch.nn.Sequential(torch.nn.AvgPool2d(32), torch.nn.Flatten(), torch.nn.Linear(147, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(arguments.epochs):
        started = time.perf_counter()
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rate = 6400 / (time.perf_counter() - started)
        print(f"epoch {epoch + 1}/{arguments.epochs}  loss {loss.item():.3f}  {rate:,.0f} samples/s")


if __name__ == "__main__":
    main()
