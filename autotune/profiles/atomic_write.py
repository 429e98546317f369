"""Writes a file so that a reader sees the old or the new text, never a part, also when several write it at once."""

from __future__ import annotations

import glob
import os
import secrets
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

NEW_MODE: Final = 0o644  # of a file that is not there yet: others who could write it could have their code run
MAX_PIECE_SECONDS: Final = (
    3600.0  # age from which a half-written file is nobody's: writing one takes less than a second
)


def write_atomically(path: Path, text: str) -> None:
    """Replace the text of a file; of those who do at the same time the last one wins.

    Raises:
        OSError: It cannot be written; the old file is still there.
    """
    data = text.encode()
    _remove_pieces(path)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, NEW_MODE)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            if path.exists():
                os.fchmod(descriptor, stat.S_IMODE(path.stat().st_mode))
            stream.write(data)
            stream.flush()
            os.fsync(descriptor)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _remove_pieces(path: Path) -> None:
    """Remove the pieces that processes left which were killed while they wrote the file."""
    with suppress(OSError):
        for piece in path.parent.glob(f".{glob.escape(path.name)}.*.new"):
            with suppress(OSError):
                if time.time() - piece.stat().st_mtime > MAX_PIECE_SECONDS:
                    piece.unlink()
