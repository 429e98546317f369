"""Reads, writes and merges tuned files (dltune.json).

Files are not trusted: they are parsed, and nothing that a field names is imported, opened or unpickled here.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

from pydantic import ValidationError

from autotune.errors import OutputError, ProfileError
from autotune.profiles.schema import TunedFile, TunedProfile
from autotune.request import reword
from autotune.units import format_bytes

MAX_FILE_BYTES: Final = 16 * 2**20  # a profile has about 4 KiB
NEW_MODE: Final = 0o644  # others who can write the file could have their code executed


def read_file(path: Path) -> TunedFile:
    """Read a tuned file; raise ProfileError if it cannot be read, is no regular file, is too large or not valid."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ProfileError(f"{path} is not a regular file.")
            if status.st_size > MAX_FILE_BYTES:
                size, limit = format_bytes(status.st_size), format_bytes(MAX_FILE_BYTES)
                raise ProfileError(f"{path} has {size}; the limit for a tuned file is {limit}.")
            return TunedFile.model_validate_json(stream.read(MAX_FILE_BYTES))
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
    except (OSError, ValueError) as error:
        hint = " Tune first: dltune --dataset MODULE:NAME." if isinstance(error, FileNotFoundError) else ""
        raise ProfileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.{hint}") from None
    kinds = {repr(".".join(map(str, problem["loc"])))[1:-1]: problem["type"] for problem in reversed(problems)}
    unknown = [field for field, kind in kinds.items() if kind == "extra_forbidden"]
    if "schema_version" in kinds or unknown:
        problem = f"has the unknown field {unknown[-1]}" if unknown else "is not of schema version 1"
        raise ProfileError(f"{path} {problem}: another version of dltune, or another program, wrote it.")
    reason = f"{list(kinds)[-1]}: {reword(problems[0]['msg'])}".removeprefix(": ")
    raise ProfileError(f"{path} is not a tuned file: {reason}. Choose another file, or remove this one.")


def read_profiles(path: Path) -> tuple[TunedProfile, ...]:
    """Return the profiles of a tuned file; none if the file is missing or not valid."""
    with suppress(ProfileError):
        return read_file(path).profiles
    return ()


def format_file(file: TunedFile) -> str:
    """Write a tuned file as indented JSON."""
    return file.model_dump_json(indent=2) + "\n"


def merge_profiles(files: Iterable[TunedFile]) -> TunedFile:
    """Join the profiles of several files; of profiles with the same id the newest validated one stays in use."""
    return _join(sorted((one for file in files for one in file.profiles), key=lambda one: one.created_at))


def _join(profiles: Iterable[TunedProfile]) -> TunedFile:
    """Keep the last validated profile of each id, and the last one after it that is not validated."""
    kept: dict[tuple[str, str | None], list[TunedProfile]] = {}
    for profile in profiles:
        key = profile.id, profile.hardware.gpu  # an id abbreviates the name of the GPU
        validated = [one for one in kept.get(key, ()) if one.is_validated and not profile.is_validated]
        kept[key] = [*validated, profile]
    return TunedFile(profiles=tuple(profile for same in kept.values() for profile in same))


def save_profile(
    path: Path,
    *profiles: TunedProfile,
    lock_seconds: float = 30.0,
    is_better: Callable[[TunedProfile], bool] = lambda stored: False,
) -> None:
    """Save profiles in a tuned file, in place of those with the same id, and keep the others; raises as `update_file`.

    A profile that is not validated is saved next to the validated one with its id, which stays in use. If a stored one
    `is_better`, nothing changes.
    """

    def add(stored: TunedFile) -> TunedFile:
        return stored if any(map(is_better, stored.profiles)) else _join((*stored.profiles, *profiles))

    update_file(path, add, lock_seconds)


def update_file(path: Path, change: Callable[[TunedFile], TunedFile], lock_seconds: float = 30.0) -> None:
    """Replace the content of a tuned file, empty if it does not exist, by that which `change` returns.

    Raises:
        ProfileError: The path holds something other than a tuned file, which is left unchanged.
        OutputError: The file cannot be written, or another process locks it for longer than `lock_seconds`.
    """
    check_writable(path)
    real = Path(os.path.realpath(path))  # all symlinks to a file share its lock
    try:
        with _lock(real, lock_seconds):
            for left in real.parent.glob(f".{glob.escape(real.name)}.*.new"):  # by a process that was killed
                left.unlink(missing_ok=True)
            text = format_file(change(read_file(path) if path.exists() else TunedFile()))
            limit = format_bytes(MAX_FILE_BYTES)
            if len(text.encode()) > MAX_FILE_BYTES:
                raise OutputError(f"{path} would exceed {limit}. Choose another file with --output.")
            write_atomically(real, text)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}.") from None


def check_writable(path: Path) -> None:
    """Raise OutputError for a path that cannot be written, ProfileError for one of another kind of file."""
    real = os.path.realpath(path)
    folder = os.path.dirname(real)  # noqa: PTH120  # functions of os.path are False for what may not be read
    if os.path.isdir(real):  # noqa: PTH112
        raise OutputError(f"{path} is a folder. Choose a file with --output.")
    if os.path.ismount(real):
        raise OutputError(f"{path} cannot be replaced: it is a mount point. Mount its folder.")
    try:
        NamedTemporaryFile(dir=folder, prefix=f".{Path(real).name}.", suffix=".tmp").close()
    except OSError as error:
        problem = f"cannot be used: {error.strerror}"
        if error.errno in {errno.EROFS, errno.EACCES}:
            problem = "is read-only"
        elif not os.path.isdir(folder):  # noqa: PTH112
            problem = "does not exist"
        elif error.errno == errno.ENAMETOOLONG:
            raise OutputError(f"{path} cannot be written: its name is too long.") from None
        raise OutputError(f"{path} cannot be written: the folder {folder} {problem}.") from None
    if os.path.exists(real):  # noqa: PTH110
        read_file(path)


def write_atomically(path: Path, text: str) -> None:
    """Replace the content of a regular file, also through a symlink; readers see the old or the new text."""
    path = Path(os.path.realpath(path))
    mode = path.stat().st_mode if path.exists() else None
    if mode is not None and not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "It is not a regular file")
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, NEW_MODE)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            if mode is not None:  # else the umask decides
                os.fchmod(descriptor, stat.S_IMODE(mode))
            stream.write(text.encode())
            stream.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def _lock(path: Path, seconds: float) -> Iterator[None]:
    """Hold the lock file of a path, and remove it at the end; file systems without locks are used without one."""
    from filelock import FileLock, Timeout  # loading a profile never needs it

    lock = FileLock(path.with_name(f".{path.name}.lock"), seconds)
    try:
        lock.acquire()
    except Timeout:
        raise OutputError(f"{path} has been locked by another process for {seconds:g} s.") from None
    except OSError as error:
        if error.errno not in {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}:  # of some network file systems
            raise
    try:
        yield
    finally:  # removed while it is held: processes that wait for it see that, and start over
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def warn_if_others_can_write(path: Path) -> None:
    """Warn, before code that a tuned file names is imported, if other users can write the file or its folder."""
    try:
        file, folders = path.stat(), {path.absolute().parent, Path(os.path.realpath(path)).parent}
        found = [file, *(status for folder in folders if not (status := folder.stat()).st_mode & stat.S_ISVTX)]
    except (OSError, ValueError):
        return  # reading the file reports the reason
    writers = {f"user {file.st_uid}"} - {"user 0", f"user {os.geteuid()}"}
    shared = (status.st_gid for status in found if status.st_mode & stat.S_IWGRP)
    writers |= {f"group {group}" for group in shared if group != os.getegid()}  # many users have a group of their own
    writers |= {"every user" for status in found if status.st_mode & stat.S_IWOTH}
    if writers:
        who = " and ".join(sorted(writers))
        warnings.warn(f"{path} names code that dltune imports now, and {who} can write it.", stacklevel=3)
