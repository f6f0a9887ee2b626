"""Changes the syntax tree of Metalmark's modules and of its tests while they are imported, and of no others."""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import marshal
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import CodeType, ModuleType

from pretend_mac.stand_ins import MODULES

CHANGED = ("metalmark", "tests")
"""The packages whose modules are changed."""
ABSENT = ("pynvml",)
"""Packages that no Mac has."""
# Only whole paths: a sentence that mentions one keeps it.
HIDDEN = re.compile(r"/(?:proc|sys|dev/shm)(?:/\S*)?")
TOOLS = re.compile(
    r"/usr/s?bin/(sysctl|system_profiler|pmset|vm_stat|memory_pressure|powermetrics|caffeinate|xcode-select)"
)
NOWHERE = "/not-on-a-mac"


class Finder(MetaPathFinder):
    """Finds our modules as Python does, and loads them changed; a few others get their last touch after loading."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        top = fullname.partition(".")[0]
        if top in ABSENT:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        if top not in CHANGED and fullname not in AFTERWARDS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            return spec
        if fullname in AFTERWARDS:
            spec.loader = Touched(fullname, spec.origin)
        else:
            spec.loader = Changed(fullname, spec.origin)
        return spec


class Changed(importlib.machinery.SourceFileLoader):
    """Loads a module's changed code, kept in the machine's own folder for the processes that follow."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source = self.get_data(path)
        kept = _cache() / f"{hashlib.sha256(source + path.encode()).hexdigest()}.code"
        if kept.exists():
            return marshal.loads(kept.read_bytes())  # type: ignore[no-any-return]
        tree = Rewriter().visit(ast.parse(source, filename=path))
        code: CodeType = compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)
        beside = kept.with_suffix(f".{os.getpid()}")
        beside.write_bytes(marshal.dumps(code))
        beside.replace(kept)
        return code


class Touched(importlib.machinery.SourceFileLoader):
    """Loads a module of others unchanged, and then sets what a Mac would have set in it."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        AFTERWARDS[module.__name__](module)


class Rewriter(ast.NodeTransformer):
    def visit_Import(self, node: ast.Import) -> list[ast.stmt]:
        added: list[ast.stmt] = []
        for alias in node.names:
            # "import a.b" binds a; "import a.b as c" binds a.b.
            module = alias.name if alias.asname else alias.name.partition(".")[0]
            if module in MODULES:
                bound = alias.asname or module
                added.append(_assign(bound, "__pretend_module__", module, bound))
        return [node, *added]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> list[ast.stmt]:
        added: list[ast.stmt] = []
        for alias in node.names if node.module and not node.level else ():
            if node.module in MODULES or f"{node.module}.{alias.name}" in MODULES:
                bound = alias.asname or alias.name
                added.append(_assign(bound, "__pretend_from__", f"{node.module}:{alias.name}", bound))
        return [node, *added]

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if node.attr == "type" and isinstance(node.ctx, ast.Load):
            return ast.copy_location(_call("__pretend_type__", node.value), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "str" and len(node.args) == 1 and not node.keywords:
            return ast.copy_location(_call("__pretend_str__", node.args[0]), node)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str):
            tool = TOOLS.fullmatch(node.value)
            if tool:
                node.value = f"{os.environ['PRETEND_MAC']}/bin/{tool[1]}"
            elif HIDDEN.fullmatch(node.value):
                node.value = NOWHERE + node.value
        return node


def _call(function: str, value: ast.expr) -> ast.Call:
    return ast.Call(func=ast.Name(id=function, ctx=ast.Load()), args=[value], keywords=[])


def _assign(bound: str, function: str, what: str, name: str) -> ast.Assign:
    call = ast.Call(
        func=ast.Name(id=function, ctx=ast.Load()),
        args=[ast.Constant(value=what), ast.Name(id=name, ctx=ast.Load())],
        keywords=[],
    )
    return ast.Assign(targets=[ast.Name(id=bound, ctx=ast.Store())], value=call)


def _cache() -> Path:
    folder = Path(os.environ["PRETEND_MAC"], "code", sys.implementation.cache_tag)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _spawn(module: ModuleType) -> None:
    """Processes are spawned, not forked."""
    module._default_context._default_context = module._concrete_contexts["spawn"]


def _short_sockets(module: ModuleType) -> None:
    """A socket's path has at most 103 characters."""

    class Socket(module.socket):  # type: ignore[name-defined, misc]
        def bind(self, address: object) -> None:
            if self.family == module.AF_UNIX and len(os.fsencode(str(address))) > 103:
                raise OSError("AF_UNIX path too long")
            super().bind(address)

    module.socket = Socket


AFTERWARDS: dict[str, Callable[[ModuleType], None]] = {"multiprocessing.context": _spawn, "socket": _short_sockets}
