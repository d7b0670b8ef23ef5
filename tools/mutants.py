"""Mutants of a Python file: small faults, each a textual edit of one line.

The faults are chosen on the syntax tree and written back as text, so the rest of the file stays as
it is and a mutant reads as a one-line diff. An id does not depend on the line's number: code added
above a line keeps the ids of its mutants.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"), ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"),
}  # fmt: skip
_NAMES = {
    "min": "max", "max": "min", "any": "all", "all": "any", "amin": "amax", "amax": "amin",
    "argmin": "argmax", "argmax": "argmin", "sum": "mean", "mean": "sum",
}  # fmt: skip
# calls that leave what they are given as it is, or nearly: a value takes their place
_UNCHANGED = (
    "sorted", "reversed", "abs", "round", "strip", "lower", "casefold", "replace", "escape",
    "softmax", "log_softmax", "sigmoid", "exp", "log", "sqrt", "flip", "nan_to_num", "normalize",
)  # fmt: skip
_MODULES = ("torch", "functional", "F", "math", "np", "html", "dataclasses")
_REDUCTIONS = ("sum", "mean", "amax", "amin", "any", "all", "argmax", "argmin", "norm", "softmax")
# reports to a person, not results
_REPORTS = ("progress", "advance", "log", "echo", "print", "starting")
# guards that no data of a test may reach; what only changes how something looks; progress
_NO_BEHAVIOUR = (
    "strict", "stacklevel", "repr", "indent", "figsize", "fontsize", "markersize", "linewidth",
    "alpha", "padding", "meanprops", "flierprops", "starting",
)  # fmt: skip
_TYPING = ("TypeVar", "cast", "Literal", "NewType", "ClassVar", "Annotated", "Protocol")


@dataclass(frozen=True)
class Mutant:
    """One fault: `new` instead of the bytes `start` to `end` of one line."""

    id: str
    path: str  # of the file, relative to the root, with /
    line: int  # from 1
    start: int
    end: int
    old: str
    new: str
    operator: str
    scope: str = ""  # the qualified name of the function, or of the class with a dot at its end

    @property
    def package(self) -> str:
        """The folder in the library, or the library itself."""
        parts = self.path.split("/")
        return parts[2] if len(parts) > 3 else parts[1]

    def applied(self, source: str) -> str:
        """The source with the fault."""
        lines = source.splitlines(keepends=True)
        lines[self.line - 1] = self._edited(lines[self.line - 1])
        return "".join(lines)

    def valid(self, source: str) -> bool:
        """Whether the source with the fault parses, and differs in more than its text."""
        try:
            return ast.dump(ast.parse(self.applied(source))) != ast.dump(ast.parse(source))
        except SyntaxError:
            return False

    def diff(self, source: str) -> str:
        """The line before and after."""
        line = source.splitlines()[self.line - 1]
        return f"- {line.strip()}\n+ {self._edited(line).strip()}"

    def _edited(self, line: str) -> str:
        data = line.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()


def mutants(path: str, source: str) -> list[Mutant]:
    """All mutants of a file, in order; see `Mutant.valid` for those that are none.

    >>> [(mutant.old, mutant.new) for mutant in mutants("f.py", "x = a + 1")]
    [('+', '-'), ('1', '0'), ('1', '2')]
    """
    tree = ast.parse(source)
    lines = source.splitlines()
    seen: dict[tuple[str, ...], int] = {}
    results = []
    for edit, scope in sorted(set(_Edits(tree, lines).all())):
        line, start, end, new, operator = edit
        data = lines[line - 1].encode()
        old = data[start:end].decode()
        stripped = lines[line - 1].strip()
        column = str(start - (len(data) - len(data.lstrip())))
        key = (path, stripped, column, old, new, operator)
        number = seen[key] = seen.get(key, -1) + 1  # the same line may occur again
        digest = hashlib.sha256("\0".join((*key, str(number))).encode()).hexdigest()[:12]
        results.append(Mutant(digest, path, line, start, end, old, new, operator, scope))
    return results


Edit = tuple[int, int, int, str, str]  # line, first byte, last byte + 1, new text, operator


class _Edits:
    """Walks a tree and proposes edits; subtrees that hold no behaviour are skipped."""

    def __init__(self, tree: ast.Module, lines: list[str]) -> None:
        self.tree = tree
        self.lines = [line.encode() for line in lines]

    def all(self) -> Iterator[tuple[Edit, str]]:
        """Each edit with its scope."""
        yield from self._visit(self.tree, "", "")

    def _visit(self, node: ast.AST, scope: str, inner: str) -> Iterator[tuple[Edit, str]]:
        """The edits of a node; the names of functions in it begin with `inner`."""
        if _skipped(node):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            scope, inner = f"{inner}{node.name}", f"{inner}{node.name}.<locals>."
        elif isinstance(node, ast.ClassDef):
            scope = inner = f"{inner}{node.name}."
        yield from ((edit, scope) for edit in self._edits(node))
        if isinstance(node, ast.Raise):  # its message and its kind of error are for people
            return
        for child in _children(node):
            yield from self._visit(child, scope, inner)

    def _edits(self, node: ast.AST) -> Iterator[Edit]:
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
                for left, op, right in zip(operands, node.ops, operands[1:], strict=False):
                    yield from self._between(left, right, *_COMPARISONS[type(op)], "comparison")
            case ast.BinOp() if type(node.op) in _ARITHMETIC and not _textual(node):
                pair = _ARITHMETIC[type(node.op)]
                yield from self._between(node.left, node.right, *pair, "arithmetic")
            case ast.AugAssign() if type(node.op) in _ARITHMETIC:
                old, new = _ARITHMETIC[type(node.op)]
                yield from self._between(node.target, node.value, f"{old}=", f"{new}=", "in place")
            case ast.BoolOp():
                pair = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                for left, right in zip(node.values, node.values[1:], strict=False):
                    yield from self._between(left, right, *pair, "and/or")
            case ast.UnaryOp(op=ast.Not() | ast.USub()):
                yield from self._replaced(node, self._text(node.operand), "negation")
            case ast.Constant():
                yield from self._constant(node)
            case ast.Call():
                yield from self._call(node)
            case ast.Return(value=ast.expr() as value) if not _is_none(value):
                yield from self._replaced(value, "None", "return None")
            case ast.If() | ast.IfExp():
                for new in ("True", "False"):
                    yield from self._replaced(node.test, new, "condition")
            case ast.While():
                yield from self._replaced(node.test, "False", "condition")
            case ast.comprehension():
                for condition in node.ifs:
                    yield from self._replaced(condition, "True", "condition")
            case ast.With():
                yield from self._without_context(node)
            case ast.Slice():
                yield from self._other_end(node)
                for bound in (node.lower, node.upper):
                    if bound is not None and not isinstance(bound, ast.Constant):
                        yield from self._replaced(bound, f"{self._text(bound)} + 1", "slice")
            case _:
                pass
        yield from self._strings(node)
        if isinstance(node, ast.stmt) and _removable(node):
            yield from self._replaced(node, "pass", "statement")

    def _constant(self, node: ast.Constant) -> Iterator[Edit]:
        value = node.value
        if isinstance(value, bool):
            yield from self._replaced(node, str(not value), "truth value")
        elif isinstance(value, int):
            yield from self._replaced(node, str(value + 1), "number")
            yield from self._replaced(node, str(value - 1), "number")
        elif isinstance(value, float):
            yield from self._replaced(node, repr(value + 1), "number")
            if abs(value) > 1e-20:  # smaller ones guard a division by zero: twice is as good
                yield from self._replaced(node, repr(value * 2), "number")

    def _call(self, node: ast.Call) -> Iterator[Edit]:
        func = node.func
        name = func.id if isinstance(func, ast.Name) else getattr(func, "attr", "")
        if name in _NAMES and not (isinstance(func, ast.Name) and name in ("sum", "mean")):
            end = func.end_col_offset or 0
            size = len(name.encode())
            yield (func.end_lineno or 0, end - size, end, _NAMES[name], "function")
        module = isinstance(func, ast.Attribute) and ast.unparse(func.value) in _MODULES
        if name in _UNCHANGED and isinstance(func, ast.Attribute) and not module:
            yield from self._replaced(node, self._text(func.value), "call")
        elif name in _UNCHANGED and node.args:
            yield from self._replaced(node, self._text(node.args[0]), "call")
        elif name in _REDUCTIONS and isinstance(func, ast.Attribute) and not module and node.args:
            for axis in node.args:
                yield from self._replaced(axis, "", "axis")
        for keyword in node.keywords:
            if keyword.arg not in (None, *_NO_BEHAVIOUR) and keyword.lineno == keyword.end_lineno:
                yield self._without(keyword)

    def _without_context(self, node: ast.With) -> Iterator[Edit]:
        """A block without its context, where that has no name."""
        (item, *others) = node.items
        expression = item.context_expr
        if not others and item.optional_vars is None and expression.end_lineno == node.lineno:
            yield (node.lineno, node.col_offset, expression.end_col_offset or 0, "if True", "with")

    def _other_end(self, node: ast.Slice) -> Iterator[Edit]:
        """As many elements of the other end."""
        lower, upper = node.lower, node.upper
        if node.step is not None or (lower is None) == (upper is None):
            return
        (bound,) = (bound for bound in (lower, upper) if bound is not None)
        negative = isinstance(bound, ast.UnaryOp) and isinstance(bound.op, ast.USub)
        opposite = self._text(bound.operand) if negative else f"-({self._text(bound)})"
        yield from self._replaced(node, f":{opposite}" if lower else f"{opposite}:", "slice")

    def _without(self, keyword: ast.keyword) -> Edit:
        """A call without one keyword argument and the comma that goes with it."""
        line = self.lines[keyword.lineno - 1]
        start, end = keyword.col_offset, keyword.end_col_offset or 0
        before, after = line[:start].rstrip(), line[end:].lstrip()
        if before.endswith(b","):
            start = len(before) - 1
        elif after.startswith(b","):
            end = line.index(b",", end) + 1
        return (keyword.lineno, start, end, "", "keyword argument")

    def _strings(self, node: ast.AST) -> Iterator[Edit]:
        """Strings that choose something: keys, subscripts, names compared with or looked up."""
        strings: list[ast.expr | None] = []
        match node:
            case ast.Dict():
                strings += node.keys
            case ast.Subscript():
                strings.append(node.slice)
            case ast.Compare():
                strings += [node.left, *node.comparators]
            case ast.Call(func=ast.Attribute(attr="get" | "setdefault" | "pop")):
                strings += node.args[:1]
            case ast.Call(func=ast.Name(id="getattr" | "hasattr")):
                strings += node.args[1:2]
            case ast.keyword(arg="kind"):
                strings.append(node.value)
            case _:
                pass
        for value in strings:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                text = self._text(value)
                if text[:1] in "\"'":
                    yield from self._replaced(value, f"{text[0]}X{text[1:]}", "string")

    def _text(self, node: ast.expr) -> str:
        """A node's own text; of several lines, something that cannot be written back."""
        if node.lineno != node.end_lineno:
            return "("
        return self.lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()

    def _replaced(self, node: ast.expr | ast.stmt, new: str, operator: str) -> Iterator[Edit]:
        if node.lineno == node.end_lineno:
            yield (node.lineno, node.col_offset, node.end_col_offset or 0, new, operator)

    def _between(
        self, left: ast.expr, right: ast.expr, old: str, new: str, operator: str
    ) -> Iterator[Edit]:
        """An operator between two operands on one line; parentheses may be there too."""
        if left.end_lineno != right.lineno:
            return
        start, end = left.end_col_offset or 0, right.col_offset
        gap = self.lines[right.lineno - 1][start:end].decode()
        at = gap.find(old)
        if at >= 0:
            yield (right.lineno, start + at, start + at + len(old), new, operator)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that run: no annotations, decorators, bases or type parameters."""
    skipped = {"annotation", "returns", "decorator_list", "bases", "keywords", "type_params"}
    if isinstance(node, ast.Call):
        skipped = set()
    for name, value in ast.iter_fields(node):
        if name in skipped:
            continue
        values = value if isinstance(value, list) else [value]
        yield from (child for child in values if isinstance(child, ast.AST))


def _skipped(node: ast.AST) -> bool:
    """Docstrings, __repr__, blocks for the type checker, messages, reports of progress."""
    match node:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case ast.FunctionDef(name="__repr__") | ast.Import() | ast.ImportFrom():
            return True
        case ast.If():
            return "TYPE_CHECKING" in ast.unparse(node.test)
        case ast.ClassDef():
            return any("Protocol" in ast.unparse(base) for base in node.bases)
        case ast.Assign(targets=[ast.Name(id="__all__")]) | ast.JoinedStr():
            return True
        case ast.Call():
            name = ast.unparse(node.func).rpartition(".")[2].lower()
            return name in [word.lower() for word in _TYPING] or _reports(name)
        case ast.keyword(arg=str(name)):
            return name in _NO_BEHAVIOUR
        case ast.Subscript():
            return ast.unparse(node.value).rpartition(".")[2] in _TYPING
        case _:
            return False


def _reports(name: str) -> bool:
    return any(name.startswith(word) for word in _REPORTS) and not name.startswith("log_")


def _removable(node: ast.stmt) -> bool:
    """Statements that act: calls, changes in place, errors, jumps."""
    match node:
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Delete():
            return not (isinstance(node, ast.Expr) and _skipped(node.value))
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]):  # x = changed(x)
            return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node.value))
        case ast.Continue() | ast.Break():
            return True
        case _:
            return False


def _textual(node: ast.BinOp) -> bool:
    """Texts joined, or types: another operator there is no fault that a test could miss."""
    for side in (node.left, node.right):
        if isinstance(side, ast.JoinedStr):
            return True
        if isinstance(side, ast.Constant) and (side.value is None or isinstance(side.value, str)):
            return True
        if isinstance(node.op, ast.BitOr) and isinstance(side, (ast.Name, ast.Subscript)):
            name = ast.unparse(side)
            if name[0].isupper() and not name.isupper():
                return True
    return False


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
