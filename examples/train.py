"""A short real training loop that loads dltune.json, and compares its throughput with the prediction.

python examples/train.py            # after: make demo
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import autotune
from examples.images import make_dataset, make_step


def main() -> None:
    """Train for as many epochs as the prediction covers, and print both throughputs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", default="dltune.json")
    file = parser.parse_args().file
    tuned = autotune.load(file, profile="examples.images:make_dataset")
    loader = tuned.make_loader(make_dataset(), shuffle=True)
    step = make_step()
    epochs = tuned.profile.result.epochs
    samples = 0
    started = time.perf_counter()
    for epoch in range(epochs):
        for batch in loader:
            loss = step(batch)
            samples += len(batch[0])
        print(f"epoch {epoch + 1}/{epochs}  loss {loss.item():.3f}")
    rate = samples / (time.perf_counter() - started)
    result = tuned.profile.result
    low, high = result.samples_per_second_ci95 or (result.samples_per_second,) * 2
    predicted = f"predicted {result.samples_per_second:,.0f} [{low:,.0f}-{high:,.0f}]"
    print(f"{rate:,.0f} samples/s, {predicted} ({rate / result.samples_per_second - 1:+.1%})")


if __name__ == "__main__":
    main()
