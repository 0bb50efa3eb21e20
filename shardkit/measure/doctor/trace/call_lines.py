"""Which lines of a function make a certain call, by its source: a trace does not say. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_UNNAMED = {
    "aten::item": frozenset({"float", "int", "bool"}),
    "aten::is_nonzero": frozenset({"bool"}),
}
"""What calls an operator of torch without a function of its own in the trace: types, and tests."""

_TESTS = (ast.If, ast.While, ast.IfExp, ast.Assert)

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def call_lines(source: str, line: int, function: str, called: str) -> list[int]:
    """The lines that call ``called`` in a function, in order.

    ``line`` is any of the function's; ``function`` is ``<module>`` for a file's own lines.
    ``called`` is a function's or a method's name; or an operator's that no function called:
    ``aten::item`` is ``float(loss)`` and its like, ``aten::is_nonzero`` is ``if loss > 9:``.
    Nothing is found in a source that is of another Python, or that has changed since.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    scope = tree if function == "<module>" else _function(tree, line, function)
    if scope is None:
        return []
    names = _UNNAMED.get(called, frozenset({called}))
    nodes = list(_own_nodes(scope))
    lines = {_line_of(node, names) for node in nodes if isinstance(node, ast.Call)}
    if called == "aten::is_nonzero":
        lines.update(node.test.lineno for node in nodes if isinstance(node, _TESTS))
    return sorted(line for line in lines if line is not None)


def _function(tree: ast.AST, line: int, function: str) -> ast.AST | None:
    """The innermost of that name that has the line."""
    found: ast.AST | None = None
    for node in ast.walk(tree):  # outer functions come before inner ones
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first <= line <= (node.end_lineno or node.lineno):
                found = node
    return found


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """What runs in the function itself, not in those that it defines."""
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, _SCOPES):
            yield node
            yield from _own_nodes(node)


def _line_of(call: ast.Call, names: frozenset[str]) -> int | None:
    """Where the name stands: a chain of calls may go over several lines."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in names:
        return call.func.end_lineno or call.lineno
    if isinstance(call.func, ast.Name) and call.func.id in names:
        return call.lineno
    return None
