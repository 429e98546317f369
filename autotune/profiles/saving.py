"""Writes dltune.json: whole, and never at the cost of what others have written into it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pydantic_core import from_json, to_json

from autotune.errors import OutputError, ProfileError
from autotune.profiles.atomic_write import write_atomically
from autotune.profiles.file import MAX_BYTES, parse, read_bytes, read_file
from autotune.profiles.schema import SCHEMA_VERSION, PastResult, TunedFile, TunedProfile
from autotune.profiles.upgrade import upgrade
from autotune.system.locks import LockedError, hold
from autotune.units import format_bytes

LOCK_SECONDS: Final = 30.0
MAX_HISTORY: Final = 20  # earlier results of a profile that are kept


def save_profile(path: Path, profile: TunedProfile, lock_seconds: float = LOCK_SECONDS) -> None:
    """Write a profile into a tuned file, keeping all else in it, and what a newer dltune wrote there as it stands.

    It replaces the profile of the same name, whose result becomes part of its history. The file is written beside and
    renamed, under a lock, so that nobody ever reads half of it, and that of two who write at once neither loses a
    profile.

    Raises:
        ProfileError: What lies at the path is not a tuned file; it is left as it is.
        OutputError: The file cannot be written, or is locked by another process for longer than `lock_seconds`.
    """
    _rewrite(path, lambda: _insert(profile, path) if path.exists() else format_profile(profile), lock_seconds)


def change_profile(
    path: Path, name: str, change: Callable[[TunedProfile], TunedProfile], lock_seconds: float = LOCK_SECONDS
) -> None:
    """Change what a tuned file says of a profile that it holds, whose result stays; raises as `save_profile` does."""

    def write() -> str:
        found = [one for one in parse(read_bytes(path), path).profiles if one.name == name]
        if not found:
            raise ProfileError(f"{path} holds no profile named {name!r} any more.")
        return _insert(change(found[0]), path, is_new=False)

    _rewrite(path, write, lock_seconds)


def _rewrite(path: Path, write: Callable[[], str], lock_seconds: float) -> None:
    """Put what `write` gives, when nobody else writes, into the place of a tuned file."""
    _check_folder(path)
    real = Path(os.path.realpath(path))  # a link stays a link, and all its names share one lock
    try:
        with hold(real.with_name(f".{real.name}.lock"), lock_seconds):
            text = write()
            refuse_what_could_not_be_read(path, text)
            write_atomically(real, text)
    except LockedError as error:
        who = f"process {error.holder}" if error.holder else "another process"
        raise OutputError(f"{path} has been locked by {who} for {lock_seconds:g} s.") from None
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}.") from None


def _insert(profile: TunedProfile, path: Path, *, is_new: bool = True) -> str:
    """Give the text of a file with a profile put into it; the rest of its JSON stays, known or not.

    What a new result replaces becomes part of its history.
    """
    text = read_bytes(path)
    known = {other.name: other for other in parse(text, path).profiles}
    document = upgrade(from_json(text))
    others = [other for other in document.get("profiles", ()) if other["name"] != profile.name]
    replaced = [other for other in document.get("profiles", ()) if other["name"] == profile.name]
    written = profile.model_dump(mode="json")
    if replaced and is_new:
        past = _summarize_past(known[profile.name]).model_dump(mode="json")
        written["history"] = [*replaced[0].get("history", ()), past][-MAX_HISTORY:]
    document = {**document, "profiles": [*others, written]}
    return to_json(document, indent=2, inf_nan_mode="constants").decode() + "\n"


def add_to_history(profile: TunedProfile, before: TunedProfile) -> TunedProfile:
    """Give a result with an earlier one of the same target, and what that one had replaced, in its history."""
    past = {entry.created_at: entry for entry in (*before.history, _summarize_past(before), *profile.history)}
    past.pop(profile.created_at, None)
    kept = [past[moment] for moment in sorted(past)][-MAX_HISTORY:]
    return profile.model_copy(update={"history": tuple(kept)})


def _summarize_past(before: TunedProfile) -> PastResult:
    return PastResult(
        created_at=before.created_at,
        config=before.config,
        samples_per_second=before.result.samples_per_second,
        torch=before.software.torch,
    )


def refuse_what_could_not_be_read(path: Path, text: str) -> None:
    """Refuse a text that is longer than what `read_file` reads; raises OutputError."""
    if len(text.encode()) > MAX_BYTES:
        raise OutputError(
            f"{path} would hold more than {format_bytes(MAX_BYTES)}, which is not read. Give another --output."
        )


def check_writable(path: Path) -> None:
    """Refuse an output path that cannot be written, before minutes are spent on it.

    Raises:
        OutputError: Its folder is missing or cannot be written, or the path is a folder.
        ProfileError: Something else than a tuned file lies there.
    """
    if path.is_dir():
        raise OutputError(f"{path} is a folder; give a file with --output.")
    _check_folder(path)
    if path.exists():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read_file(path)


def _check_folder(path: Path) -> None:
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise OutputError(f"{path} cannot be written: there is no folder {folder}.")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"{path} cannot be written: the folder {folder} is read-only.")


def format_file(file: TunedFile) -> str:
    """Write a tuned file as indented JSON."""
    return file.model_dump_json(indent=2, by_alias=True) + "\n"


def format_profile(profile: TunedProfile) -> str:
    """Write a tuned file that holds one profile as indented JSON."""
    return format_file(TunedFile(schema_version=SCHEMA_VERSION, profiles=(profile,)))
