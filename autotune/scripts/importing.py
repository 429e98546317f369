"""May a script be imported for what it holds, and if it lacks the name: where does that stand?"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from autotune.errors import UsageError
from autotune.import_strings import split_import_string
from autotune.request import WorkloadRequest, list_names
from autotune.scripts.effects import Effect, find_effects, is_guard
from autotune.scripts.finding import find_loaders
from autotune.scripts.names import list_writes
from autotune.scripts.source import Script, read_script


def check_scripts(workload: WorkloadRequest) -> None:
    """Refuse scripts that would train when they are imported for a name, before anything is.

    Raises:
        UsageError: A script that is named by its path is not there, cannot be read, lacks the name, or does more than
            define names.
    """
    for option, text in list_names(workload).items():
        parts = split_import_string(text)
        if parts is None or not parts.is_script:
            continue
        script = read_script(Path(workload.working_dir, parts.place))
        if not _may_have(script, parts.attribute):
            lacking = f"{option} {text}: importing {parts.place} makes no {parts.attribute}."
            raise UsageError(f"{lacking}{_explain(script, parts.attribute)}")
        if effects := find_effects(script):
            module = f"{option} {parts.module}:{parts.attribute}"
            raise UsageError(f"{option} {text}: {describe_effects(effects)} {_name_ways_out(script, module)}")


def _name_ways_out(script: Script, module: str) -> str:
    """Say what to do with a script that would train when it is imported."""
    first = f"dltune init {script.path} writes what makes its loader into a file of its own"
    if not find_loaders(script):
        first = "Put what makes the batches into a file of its own"
    return (
        f'{first}; or put that code under if __name__ == "__main__". Imported all the same it is as a module: {module}'
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
        return _explain(read_script(path), name)
    except UsageError:
        return ""


def _explain(script: Script, name: str) -> str:
    root = name.partition(".")[0]
    for place, line in _find_makers(script, root):
        way_out = f"dltune init {script.path} writes what makes the loader into a file."
        return f" It is made {place} (line {line}), which importing does not run: {way_out}"
    names = dict.fromkeys(_list_names(script.tree.body))
    offered = [one for one in names if "loader" in one.lower() or "dataset" in one.lower()]
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


def _may_have(script: Script, name: str) -> bool:
    """Tell whether importing a script may make a name, as far as can be seen."""
    names = set(_list_names(script.tree.body))
    return bool({name.partition(".")[0], "*", "__getattr__"} & names) or "globals()" in script.text


def _list_names(block: list[ast.stmt]) -> Iterator[str]:
    """List the names that a block makes, with the blocks in it that importing runs."""
    for statement in block:
        yield from (write.path[0] for write in list_writes(statement))
        if not is_guard(statement) and not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _list_names([one for one in ast.iter_child_nodes(statement) if isinstance(one, ast.stmt)])
            for handler in getattr(statement, "handlers", ()):
                yield from _list_names(handler.body)
