"""The house rules as functions over source text: each yields its findings, with their places.

A rule never reads a file and never raises: the test reads the tree, the planted offenders of
`test_tidy.py` are strings, and both go through the same functions. The rules do not repeat the
checks of ruff, mypy and import-linter.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

MODULE_LINES_MAX = 600
"""Above the length of every module with one job: a cap must not shape code."""
FUNCTION_LINES_MAX = 70
SHARED_MODULE_LINES_MIN = 40

_LEFTOVER = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
_MACHINE_PATH = re.compile(r"(?<![\w.~$}-])/(work|opt|root|home|Users)/[\w.-]+")
_CONSTANT = re.compile(r"[A-Z][A-Z0-9_]*$")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Violation:
    """A finding: the rule, the file, the line, and the advice."""

    rule: str
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


def _statements(source: str) -> Iterator[ast.stmt]:
    """Yield all statements of a module, however deep.

    Statements only: a module has ten times as many nodes, most of them expressions.
    """
    bodies: list[Iterable[ast.stmt]] = [ast.parse(source).body]
    while bodies:
        for statement in bodies.pop():
            yield statement
            parts = [
                statement,
                *getattr(statement, "handlers", ()),
                *getattr(statement, "cases", ()),
            ]
            for part in parts:
                for name in ("body", "orelse", "finalbody"):
                    bodies.append(getattr(part, name, ()))


def check_module_length(path: str, source: str) -> Iterator[Violation]:
    """Modules of at most 600 lines."""
    count = len(source.splitlines())
    if count > MODULE_LINES_MAX:
        yield Violation("module-length", path, count, f"{count} lines, at most 600: divide it")


def check_function_length(path: str, source: str) -> Iterator[Violation]:
    """Functions of at most 70 lines, docstring and nested functions included."""
    for node in _statements(source):
        if isinstance(node, _DEFINITIONS):
            count = (node.end_lineno or node.lineno) - node.lineno + 1
            if count > FUNCTION_LINES_MAX:
                text = f"{node.name} has {count} lines, at most 70: divide it"
                yield Violation("function-length", path, node.lineno, text)


def check_docstrings(path: str, source: str) -> Iterator[Violation]:
    """A docstring on the module and on each public class, function and method.

    A method of a class that has bases may inherit its text, so only plain classes' methods count.
    """
    tree = ast.parse(source)
    if tree.body and not ast.get_docstring(tree):
        yield Violation("docstring", path, 1, "the module says not what it is for")
    yield from _undocumented(path, tree.body)


def _undocumented(path: str, body: Iterable[ast.stmt]) -> Iterator[Violation]:
    for node in body:
        if not isinstance(node, (*_DEFINITIONS, ast.ClassDef)) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node) and not _is_overload(node):
            yield Violation("docstring", path, node.lineno, f"{node.name} has no docstring")
        if isinstance(node, ast.ClassDef) and not node.bases:
            yield from _undocumented(path, node.body)


def _is_overload(node: ast.stmt) -> bool:
    names = [ast.unparse(d) for d in getattr(node, "decorator_list", [])]
    return any(name.endswith(("overload", ".setter", "override")) for name in names)


def check_asserts(path: str, source: str) -> Iterator[Violation]:
    """No `assert` in product code: `python -O` removes it, `check()` stays."""
    for node in _statements(source):
        if isinstance(node, ast.Assert):
            yield Violation("assert", path, node.lineno, "use check(): -O removes an assert")


def check_sleeps(path: str, source: str) -> Iterator[Violation]:
    """No `time.sleep` in tests: wait for the event itself, with a deadline."""
    for node in ast.walk(ast.parse(source)) if "sleep" in source else ():
        called = isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep"
        imported = (
            isinstance(node, ast.ImportFrom)
            and node.module == "time"
            and any(alias.name == "sleep" for alias in node.names)
        )
        if called or imported:
            line = getattr(node, "lineno", 1)
            yield Violation("sleep", path, line, "wait for the event, not for a time")


def check_leftovers(path: str, source: str) -> Iterator[Violation]:
    """No leftover notes: what is to be done stands in an issue."""
    for number, line in enumerate(source.splitlines(), 1):
        found = _LEFTOVER.search(line)
        if found:
            yield Violation("leftover", path, number, f"{found.group()} belongs in an issue")


def check_machine_paths(path: str, source: str) -> Iterator[Violation]:
    """No absolute path of somebody's machine."""
    for number, line in enumerate(source.splitlines(), 1):
        found = _MACHINE_PATH.search(line)
        if found:
            text = f"{found.group()} is a path of one machine"
            yield Violation("machine-path", path, number, text)


def module_name(path: str) -> str:
    """The dotted name of a source path: `a/b/__init__.py` is `a.b`."""
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


@functools.cache
def imported_modules(path: str, source: str) -> frozenset[str]:
    """Absolute names of all that a module imports, `from a import b` counted as a and a.b."""
    package = module_name(path).split(".")
    if not path.endswith("/__init__.py"):
        package = package[:-1]
    names: set[str] = set()
    for node in _statements(source):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*up, *([node.module] if node.module else [])])
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return frozenset(names)


def check_unused_modules(
    sources: Mapping[str, str], entry_points: Iterable[str]
) -> Iterator[Violation]:
    """Every product module is imported by another product module, or is an entry point."""
    used: set[str] = set(entry_points)
    for path, source in sources.items():
        used.update(imported_modules(path, source) - {module_name(path)})
    # Importing a.b imports a too.
    used.update(".".join(n.split(".")[:i]) for n in list(used) for i in range(1, n.count(".") + 1))
    for path, source in sources.items():
        if module_name(path) not in used and source.strip():
            yield Violation("unused-module", path, 1, "no product module imports it")


def check_small_modules(
    sources: Mapping[str, str], excused: Iterable[str] = ()
) -> Iterator[Violation]:
    """A module of a few lines has two others that use it: else it belongs into the one."""
    users: dict[str, int] = Counter()
    for path, source in sources.items():
        users.update(imported_modules(path, source) - {module_name(path)})
    for path, source in sources.items():
        name, lines = module_name(path), source.count("\n")
        if path.endswith("/__init__.py") or name.startswith(tuple(excused)):
            continue
        if lines < SHARED_MODULE_LINES_MIN and users[name] < 2:
            text = f"has {lines} lines and {users[name]} user: it belongs there"
            yield Violation("small-module", path, 1, text)


def check_circles(sources: Mapping[str, str]) -> Iterator[Violation]:
    """No modules import each other in a circle, not even for type hints."""
    paths = {module_name(p): p for p in sources if not p.endswith("/__init__.py")}
    graph = {name: imported_modules(p, sources[p]) & paths.keys() for name, p in paths.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = [*reversed(error.args[1])]
        yield Violation("circle", paths[circle[0]], 1, " imports ".join(circle))


def check_collected(
    sources: Mapping[str, str], collected_folders: Iterable[str]
) -> Iterator[Violation]:
    """Every file with tests is one that `make test` collects."""
    folders = tuple(f.rstrip("/") + "/" for f in collected_folders)
    for path, source in sources.items():
        name = path.rsplit("/", 1)[-1]
        if not _has_tests(source):
            continue
        if not (name.startswith("test_") and path.startswith(folders)):
            text = f"has tests, but is not a test_*.py under {', '.join(folders)}"
            yield Violation("collected", path, 1, text)


def _has_tests(source: str) -> bool:
    for node in _statements(source):
        if isinstance(node, _DEFINITIONS) and node.name.startswith("test_"):
            return True
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test") and not node.bases:
            return any(isinstance(n, _DEFINITIONS) and n.name[:5] == "test_" for n in node.body)
    return False


def check_unused_names(sources: Mapping[str, str], public: Iterable[str]) -> Iterator[Violation]:
    """Yield each function, class, constant and method of the product that the product does not use.

    A use is a use of the name. An import, `__all__` and the definition itself are no use. The rule
    leaves out methods of a class with a foreign base, because the base may call them. `public` has
    the names that others use, as `package.module.name` or `package.module.Class.name`; a public
    name that the product uses itself is yielded, too.
    """
    trees = {path: ast.parse(source) for path, source in sources.items()}
    classes: set[str] = set()
    uses: dict[str, list[tuple[str, int]]] = {}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            name = _used_name(node)
            if name is not None:
                uses.setdefault(name, []).append((path, getattr(node, "lineno", 0)))
            elif isinstance(node, ast.ClassDef):
                classes.add(node.name)
    needless = set(public)
    for path, tree in trees.items():
        for name, node in _defined_names(tree.body, classes):
            last = getattr(node, "end_lineno", node.lineno)
            elsewhere = (
                use_path != path or not node.lineno <= line <= last
                for use_path, line in uses.get(name.rpartition(".")[2], ())
            )
            if any(elsewhere):
                continue
            if f"{module_name(path)}.{name}" in needless:
                needless.remove(f"{module_name(path)}.{name}")
            else:
                yield Violation("unused-name", path, node.lineno, f"nothing uses {name}")
    for name in sorted(needless):
        yield Violation("public-name", name, 1, "the product uses it, or it does not exist")


def _used_name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        return node.attr
    return None


def _defined_names(body: Iterable[ast.stmt], classes: set[str]) -> Iterator[tuple[str, ast.stmt]]:
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        names = [each.id for each in targets if isinstance(each, ast.Name)]
        if isinstance(node, (*_DEFINITIONS, ast.ClassDef)):
            names = [node.name]
        yield from ((name, node) for name in names if not name.startswith("__"))
        if isinstance(node, ast.ClassDef) and all(ast.unparse(b) in classes for b in node.bases):
            methods = (each for each in node.body if isinstance(each, _DEFINITIONS))
            for name, method in _defined_names(methods, classes):
                yield f"{node.name}.{name}", method


def check_ambiguous_constants(sources: Mapping[str, str]) -> Iterator[Violation]:
    """Yield constants that other modules import and that have two values in the tree."""
    shared = {name for path, source in sources.items() for name in imported_modules(path, source)}
    first: dict[str, tuple[str, str]] = {}
    for path, source in sources.items():
        for node in ast.parse(source).body:
            value = getattr(node, "value", None)
            for name, _ in _defined_names([node], set()):
                is_shared = f"{module_name(path)}.{name}" in shared
                if not (is_shared and _CONSTANT.match(name) and isinstance(value, ast.expr)):
                    continue
                text = ast.unparse(value)
                other_path, other = first.setdefault(name, (path, text))
                if other != text:
                    said = f"{name} is {other} in {other_path}: give one of them another name"
                    yield Violation("ambiguous-constant", path, node.lineno, said)


def check_class_names(sources: Mapping[str, str]) -> Iterator[Violation]:
    """A public class has a name of its own in its package."""
    found: dict[tuple[str, str], str] = {}
    for path, source in sorted(sources.items()):
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                first = found.setdefault((path.partition("/")[0], node.name), path)
                if first != path:
                    text = f"{node.name} is a class of {first}, too"
                    yield Violation("class-name", path, node.lineno, text)
