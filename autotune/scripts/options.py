"""What a script's options are by default: of argparse, click, typer, and of classes that hold settings."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from autotune.scripts.names import read_path

PARSERS: Final = {"parse_args", "parse_known_args", "parse_args_into_dataclasses"}
_READERS: Final = {"tyro.cli", "simple_parsing.parse", "draccus.parse"}  # which are given a class of settings
_CONVERTED: Final = {"int": int, "float": float}


def list_options(tree: ast.Module) -> dict[str, ast.expr | None]:
    """List the options of a script by the names of their values, with their defaults; None where one must be given.

    Of two of a name the first counts.
    """
    found: dict[str, ast.expr | None] = {}
    for node in ast.walk(tree):
        for name, default in _read_options(node):
            found.setdefault(name, default)
    return found


def gives_settings(value: ast.expr | None, tree: ast.Module) -> bool:
    """Tell whether an expression reads the command line: itself, or by a function of the script."""
    if not isinstance(value, ast.Call) or (path := read_path(value.func)) is None:
        return _is_parsed_inside(value, tree)
    if path[-1] in PARSERS or ".".join(path) in _READERS:
        return True
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef) and (node.name,) == path)
    return any(_parses(function) for function in functions)


def _is_parsed_inside(value: ast.expr | None, tree: ast.Module) -> bool:
    """Look into `ArgumentParser().parse_args()`, where no chain of names is called, and `parse(...)[0]`."""
    match value:
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in PARSERS
        case ast.Subscript(value=inner):
            return gives_settings(inner, tree)
    return False


def _parses(function: ast.FunctionDef) -> bool:
    calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    return any(isinstance(call.func, ast.Attribute) and call.func.attr in PARSERS for call in calls)


def _read_options(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    match node:
        case ast.Call(func=ast.Attribute(attr="add_argument"), args=args, keywords=keywords):
            yield from _read_argparse(args, {one.arg: one.value for one in keywords if one.arg})
        case ast.Call(func=ast.Attribute(attr="set_defaults"), keywords=keywords):
            yield from ((one.arg, one.value) for one in keywords if one.arg)
        case ast.FunctionDef(decorator_list=decorators):
            for decorator in decorators:
                yield from _read_click(decorator)
        case ast.ClassDef(body=body):
            yield from _read_fields(body)


def _read_argparse(args: list[ast.expr], given: dict[str, ast.expr]) -> Iterator[tuple[str, ast.expr | None]]:
    flags = [arg.value for arg in args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    if not flags:
        return
    name = next((flag for flag in flags if flag.startswith("--")), flags[0])
    match given.get("dest"):
        case ast.Constant(value=str(dest)):
            name = dest
    action = given.get("action")
    switch = action.value if isinstance(action, ast.Constant) else None
    is_required = not flags[0].startswith("-") and not _may_be_left_out(given)
    match given.get("required"):
        case ast.Constant(value=True):
            is_required = True
    default: ast.expr | None = given.get("default")
    if default is None and not is_required:
        default = ast.Constant({"store_true": False, "store_false": True}.get(str(switch)))
    yield name.lstrip("-").replace("-", "_"), _convert(default, given.get("type"))


def _may_be_left_out(given: dict[str, ast.expr]) -> bool:
    match given.get("nargs"):
        case ast.Constant(value="?" | "*"):
            return True
    return False


def _convert(default: ast.expr | None, kind: ast.expr | None) -> ast.expr | None:
    """Make a number of `default="256", type=int`, as argparse does."""
    match default, kind:
        case ast.Constant(value=str(text)), ast.Name(id=name) if name in _CONVERTED:
            try:
                return ast.Constant(_CONVERTED[name](text))
            except ValueError:
                return default
    return default


def _read_click(decorator: ast.expr) -> Iterator[tuple[str, ast.expr | None]]:
    match decorator:
        case ast.Call(func=ast.Attribute(attr="option" | "argument" as kind), args=args, keywords=keywords):
            given = {one.arg: one.value for one in keywords if one.arg}
            flags = [str(arg.value) for arg in args if isinstance(arg, ast.Constant)]
            names = [flag for flag in flags if not flag.startswith("-")]
            names += [flag for flag in flags if flag.startswith("--")] or flags
            is_flag = isinstance(given.get("is_flag"), ast.Constant) or any("/" in flag for flag in flags)
            usual = ast.Constant(False) if is_flag else ast.Constant(None)
            is_required = kind == "argument" or "required" in given
            default = given.get("default") or (None if is_required else usual)
            if names:
                yield names[0].partition("/")[0].lstrip("-").replace("-", "_"), default


def _read_fields(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr | None]]:
    """Read the fields of a class of settings, such as a dataclass."""
    for statement in body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), value=value):
                yield name, read_default(value)


def read_default(value: ast.expr | None) -> ast.expr | None:
    """Read the default of a field or a parameter, also where typer's or a dataclass's words stand around it."""
    match value:
        case ast.Call(func=func, args=args, keywords=keywords) if (read_path(func) or ("",))[-1] in (
            *("Option", "Argument", "field", "Field"),
        ):
            given = {one.arg: one.value for one in keywords}
            found = given.get("default") or (args[0] if args else None)
            return None if isinstance(found, ast.Constant) and found.value is ... else found
    return value
