"""Tells whether a tuned file may be followed: to check or retune it, what it names is imported and called.

That is running a program, as `make` runs a Makefile. So a file into which other users of the machine may have written
is followed only when its reader says so. To be shown, loaded or exported a file needs no trust: it is only read.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from autotune.errors import ProfileError


def is_private_group(group: int) -> bool:
    """Tell whether a group is the user's alone, as many systems give one to each; its files are group-writable."""
    try:
        ours, entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return group == ours.pw_gid and entry.gr_name == ours.pw_name and set(entry.gr_mem) <= {ours.pw_name}


def refuse_what_others_may_write(path: Path, is_private: Callable[[int], bool] = is_private_group) -> None:
    """Refuse a file that another user of this machine may have written; what a link points to is looked at as well.

    Raises:
        ProfileError: It belongs to another user who is not root, or its mode or that of its folder lets others write.
    """
    for danger in _list_dangers(path, is_private):
        raise ProfileError(
            f"{path}: {danger}. What it names would be imported and called as you. Read it, and then give --trust."
        )


def _list_dangers(path: Path, is_private: Callable[[int], bool]) -> Iterator[str]:
    """Yield what lets others write the file, each with what would end it."""
    try:
        file, folders = path.stat(), {path.absolute().parent, Path(os.path.realpath(path)).parent}
        if file.st_uid not in (0, os.geteuid()):
            yield f"it belongs to another user (number {file.st_uid}; you are {os.geteuid()}); make a copy of your own"
        others = stat.S_IWOTH if is_private(file.st_gid) else stat.S_IWGRP | stat.S_IWOTH
        if file.st_mode & others:
            yield f"other users may write it (mode {_describe_mode(file)}); end that with chmod go-w {path}"
        for folder in sorted(folders):
            status = folder.stat()
            if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
                words = f"other users may replace it: they may write its folder (mode {_describe_mode(status)})"
                yield f"{words}; end that with chmod o-w {folder}"
    except (OSError, ValueError):
        return  # reading it says why it cannot be read


def _describe_mode(status: os.stat_result) -> str:
    return f"{stat.S_IMODE(status.st_mode):04o}"
