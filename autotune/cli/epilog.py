"""What stands below the options in the help of a command: examples to copy, and exit codes where they matter."""

from __future__ import annotations

from typing import Final

READS_A_FILE: Final = "0 done; 1 the output cannot be written; 2 FILE cannot be read, or holds no such profile"
TUNES: Final = "3 no configuration works; 130 interrupted, with the best so far written"


def epilog(*examples: str, codes: str = "", more: str = "") -> str:
    """Write it; a backspace on a line of its own keeps click from wrapping the paragraph below it."""
    paragraphs = ["\n".join(["\b", "Examples:", *(f"  {example}" for example in examples)])]
    paragraphs += [more] if more else []
    paragraphs += [f"Exit codes: {codes}."] if codes else []
    return "\n\n".join(paragraphs)
