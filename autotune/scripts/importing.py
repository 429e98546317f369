"""May a script be imported for what it holds, and if it lacks the name: where does that stand?"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from autotune.errors import UsageError
from autotune.import_strings import split_import_string
from autotune.request import WorkloadRequest, list_names
from autotune.scripts.effects import Effect, find_effects, is_guard
from autotune.scripts.names import list_writes
from autotune.scripts.source import Script, read_script


def check_scripts(workload: WorkloadRequest) -> None:
    """Refuse scripts that would train when they are imported for a name, before anything is.

    Raises:
        UsageError: A script that is named by its path is not there, cannot be read, or does more than define names.
    """
    for option, text in list_names(workload).items():
        parts = split_import_string(text)
        if parts is None or not parts.is_script:
            continue
        path = Path(workload.working_dir, parts.place)
        effects = find_effects(read_script(path))
        if effects:
            module = f"{Path(parts.place).stem}:{parts.attribute}"
            raise UsageError(
                f"{option} {text}: {describe_effects(effects)} dltune init {parts.place} writes what makes its loader "
                'into a file of its own; or put that code under if __name__ == "__main__". To import it all the same, '
                f"name it as a module: {option} {module}"
            )


def describe_effects(effects: tuple[Effect, ...]) -> str:
    """Say what importing a script would run."""
    first, more = effects[0], len(effects) - 1
    rest = f", and {more} statement{'s' if more > 1 else ''} like it" if more else ""
    if first.reads_arguments:
        return f"importing it would read the command line (line {first.line}: {first.words}){rest}."
    return f"importing it would run line {first.line} ({first.words}){rest}."


def explain_missing(path: Path, name: str) -> str:
    """Say where in a script a name is made that importing it does not make; empty where nothing is known.

    It ends a sentence that has said that the module lacks the name.
    """
    try:
        script = read_script(path)
    except UsageError:
        return ""
    root = name.partition(".")[0]
    for place, line in _find_makers(script, root):
        return f" It is made {place} (line {line}), which importing does not run: dltune init {path}"
    offered = [one for one in _list_names(script) if "loader" in one.lower() or "dataset" in one.lower()]
    return f" It has {', '.join(offered[:5])}." if offered else ""


def _find_makers(script: Script, name: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.If) and is_guard(node):
            place = 'under if __name__ == "__main__"'
        elif isinstance(node, ast.FunctionDef):
            place = f"in the function {node.name}"
        else:
            continue
        for inner in (one for one in ast.walk(node) if isinstance(one, ast.stmt) and one is not node):
            if any(write.path == (name,) and write.is_whole for write in list_writes(inner)):
                yield place, inner.lineno


def _list_names(script: Script) -> list[str]:
    return list(dict.fromkeys(write.path[0] for node in script.tree.body for write in list_writes(node)))
