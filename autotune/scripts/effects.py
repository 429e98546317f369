"""What would run if a script were imported, beside what makes its names?"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from autotune.scripts.source import Script

_HARMLESS: Final = re.compile(
    r"(print|input_size|setattr|super"
    r"|(logging|logger|log|warnings|random|np\.random|numpy\.random|sys\.path|matplotlib|plt\.style|pd\.set_option"
    r"|mp|multiprocessing|torch\.multiprocessing|os\.environ|os\.makedirs|os\.chdir|load_dotenv|locale|gc|resource"
    r"|torch\.backends|torch\.set_\w+|torch\.manual_seed|torch\.cuda\.(manual_seed|empty_cache)\w*|torch\.use_\w+"
    r"|torch\.autograd\.set_\w+|torch\._dynamo|register_\w+)(\.\w+)*"
    r"|[\w.]+\.(add_argument|append|extend|update|insert|setdefault|sort|mkdir|register|setLevel|addHandler|seed"
    r"|manual_seed|set_seed|set_verbosity\w*|set_defaults|filterwarnings|simplefilter|basicConfig|set_start_method"
    r"|add_argument_group|DEFINE_\w+|register_new_resolver|store)"
    r"|(set|fix|seed)_?(random_?)?(seed|everything|all)?\w*)"
)  # calls whose value nobody takes, and that train nothing
_TRAINS: Final = {"fit", "backward", "tune", "train_epoch", "init_process_group", "launch", "spawn"}
_READS_ARGUMENTS: Final = {"parse_args", "parse_known_args", "parse_args_into_dataclasses"}
_TYPES: Final = {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


class Effect(NamedTuple):
    """A statement at the top of a script that does more than make names; `reads_arguments` of the command line."""

    line: int
    words: str
    reads_arguments: bool = False


def find_effects(script: Script) -> tuple[Effect, ...]:
    """Find what importing a script would run, in order; empty where it only defines."""
    return tuple(_list_effects(script.tree.body))


def is_guard(node: ast.stmt) -> bool:
    """Tell whether it is `if __name__ == "__main__":`, whose body an import passes over."""
    if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
        return False
    sides = (node.test.left, *node.test.comparators)
    is_named = any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides)
    return is_named and any(isinstance(side, ast.Constant) and side.value == "__main__" for side in sides)


def _list_effects(block: list[ast.stmt]) -> Iterator[Effect]:
    for statement in block:
        if is_guard(statement):
            continue
        match statement:
            case ast.If(test=test, body=body, orelse=orelse):
                yield from () if ast.unparse(test) in _TYPES else _list_effects([*body, *orelse])
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                caught = [inner for handler in handlers for inner in handler.body if not isinstance(inner, ast.Raise)]
                yield from _list_effects([*body, *caught, *orelse, *final])
            case ast.With(body=body):
                yield from _list_effects(body)
            case ast.For(body=body):
                yield from _list_effects(body)
            case ast.While():
                yield _describe(statement)
            case ast.Expr(value=ast.Call(func=func)) if not _HARMLESS.fullmatch(ast.unparse(func)):
                yield _describe(statement)
            case ast.Raise():
                yield _describe(statement)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Expr():
                yield from _look_into(statement)


def _look_into(statement: ast.stmt) -> Iterator[Effect]:
    """Look for calls that train, or that read the command line, where a value is made of them."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
            if name in _READS_ARGUMENTS:
                yield _describe(statement)._replace(reads_arguments=True)
                return
            if name in _TRAINS:
                yield _describe(statement)
                return


def _describe(statement: ast.stmt) -> Effect:
    return Effect(statement.lineno, ast.unparse(statement).partition("\n")[0][:80])
