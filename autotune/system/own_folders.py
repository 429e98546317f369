"""Folders of the user's own in places that everybody may write to, under names that everybody can foresee."""

from __future__ import annotations

import os
from pathlib import Path


def make_own_folder(folder: Path) -> bool:
    """Make a folder that only this user can enter, where it is not there; False where it is somebody else's.

    Raises:
        OSError: It cannot be made.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    return not folder.is_symlink() and folder.stat().st_uid == os.getuid()
