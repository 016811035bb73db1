"""Finds the classes of a vLLM source tree by name, and imports its pooling code on its own.

A tree is imported under a package name that is private to it, with its import statements led to that
name and the rest of it unchanged. So releases live side by side in one process, next to an installed
vLLM too, and imports that a function makes later still find their own release. What is not pooling
comes from `impl.vllm.stubs`. Nothing is written into the tree, not even bytecode.
"""

import ast
import importlib
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from itertools import count
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from impl.config import PoolerConfig, SubjectError
from impl.vllm import stubs

_CLASS: Final = re.compile(r"^class (\w+)", re.MULTILINE)
_ALONE: Final = "_poolproof_vllm_"
_numbers = count()
_trees: dict[str, "Tree"] = {}


def package_in(directory: Path) -> Path:
    """The vllm package of a checkout or an unpacked wheel, or the directory if it is the package itself.

    Raises:
        SubjectError: there is none.
    """
    if (directory / "vllm").is_dir():
        return (directory / "vllm").resolve()
    if (directory / "__init__.py").is_file():
        return directory.resolve()
    what = "holds no vllm/ and is not that package itself" if directory.is_dir() else "is not a directory"
    raise SubjectError(f"{directory} {what}; give a checkout of vLLM or an unpacked wheel")


class Sources:
    """The source files of a vllm package, and which class is defined where."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules: dict[str, str | None] = {}
        """Classes of the pooling code, each with the module that defines it; None once looked for in vain."""
        self.searched = 0
        for path in sorted(root.rglob("*.py")):
            if stubs.is_own(module := self.module(path)):
                self.searched += 1
                self.modules.update(dict.fromkeys(_CLASS.findall(_text(path)), module))

    def module(self, path: Path) -> str:
        """The module's name, from `vllm` on."""
        parts = path.relative_to(self.root).with_suffix("").parts
        return ".".join(("vllm", *parts)).removesuffix(".__init__")

    def path(self, module: str) -> Path:
        """Where a module lies, without its suffix, if there is one."""
        return self.root.joinpath(*module.split(".")[1:])

    def file(self, module: str) -> Path | None:
        """The file of a module, if there is one."""
        path = self.path(module)
        files = (path / "__init__.py", path.with_suffix(".py"))
        return next((file for file in files if file.is_file()), None)

    def where(self, name: str) -> str | None:
        """The module that defines a class: one about pooling or, failing that, any."""
        if name not in self.modules:
            found = (self.module(path) for path in self.root.rglob("*.py") if name in _CLASS.findall(_text(path)))
            self.modules[name] = next(found, None)
        return self.modules[name]


class Library(ABC):
    """A vLLM's classes by name."""

    whole = False
    """Whether all of vLLM is there, kernels included."""

    def __init__(self, root: Path) -> None:
        self.sources = Sources(root)

    def has(self, name: str) -> bool:
        """Whether there is a class of this name."""
        return self.sources.where(name) is not None

    def __getitem__(self, name: str) -> Any:
        """The class of this name, imported.

        Raises:
            SubjectError: there is none.
        """
        module = self.sources.where(name)
        if module is None:
            raise SubjectError(
                f"there is no class {name} under {self.sources.root}: it was looked for in the "
                f"{self.sources.searched} modules about pooling, then in all others"
            )
        return getattr(self.load(module), name)

    @abstractmethod
    def excerpt(self, name: str) -> Any:
        """A class out of a module that is not about pooling, or None if there is none that is known."""

    @abstractmethod
    def load(self, module: str) -> ModuleType:
        """Import a module, named from `vllm` on."""

    @abstractmethod
    def config(self, config: PoolerConfig) -> AbstractContextManager[None]:
        """A context in which poolers are made for a config."""


class Tree(Library):
    """A source tree whose pooling code is imported on its own."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.prefix = f"{_ALONE}{next(_numbers)}"
        _trees[self.prefix] = self
        # A pooler is made for each scenario; its source is read once.
        self._excerpts: dict[str, Any] = {}

    def config(self, config: PoolerConfig) -> AbstractContextManager[None]:
        """See `Library.config`."""
        return stubs.current_config(config)

    def load(self, module: str) -> ModuleType:
        """Import a module of the tree, or its stand-in."""
        return importlib.import_module(f"{self.prefix}.{module}")

    def excerpt(self, name: str) -> Any:
        """See `Library.excerpt`."""
        if name not in self._excerpts:
            self._excerpts[name] = self._find_excerpt(name)
        return self._excerpts[name]

    def _find_excerpt(self, name: str) -> Any:
        for file in sorted(self.sources.root.rglob("*.py")):
            module = self.sources.module(file)
            if stubs.is_excerpted(module) and name in _CLASS.findall(_text(file)):
                return self._excerpt(file, module, name)
        return None

    def own_file(self, module: str) -> Path | None:
        """The file of a module that is imported as it is."""
        is_own = stubs.is_own(module) or module in self.sources.modules.values()
        return self.sources.file(module) if is_own else None

    def supply(self, module: str, name: str) -> Any:
        """What stands for a name of a module that is not imported."""
        if not module:
            return self.load(name)
        path = f"{module}.{name}"
        for known, stand_in in stubs.STAND_INS.items():
            if path.endswith(f".{known}") or path == known:
                return stand_in
        if self.sources.file(path):
            return self.load(path)
        if self.sources.modules.get(name):
            return self[name]
        if name in stubs.EXCERPTS and (file := self.sources.file(module)):
            return self._excerpt(file, module, name)
        return stubs.absent(module, name)

    def _excerpt(self, file: Path, module: str, name: str) -> Any:
        """One definition of a file, run with as many of the file's imports as it uses and nothing else of it."""
        body = ast.parse(_text(file)).body
        definition = next((node for node in body if _defines(node, name)), None)
        if definition is None:
            return stubs.absent(module, name)
        used = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}
        imports = [kept for node in body if (kept := _imported(node, used))]
        namespace = {known: value for known, value in stubs.STAND_INS.items() if known in used}
        namespace["__name__"] = module
        tree = ast.fix_missing_locations(_Redirected(self.prefix).visit(ast.Module([*imports, definition], [])))
        exec(compile(tree, file, "exec", dont_inherit=True), namespace)
        return namespace[name]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _defines(node: ast.stmt, name: str) -> bool:
    match node:
        case ast.FunctionDef() | ast.ClassDef():
            return node.name == name
        case ast.Assign(targets=[ast.Name(id=target)]) | ast.AnnAssign(target=ast.Name(id=target)):
            return target == name
    return False


def _imported(node: ast.stmt, used: set[str]) -> ast.Import | ast.ImportFrom | None:
    """As much of an import as binds names that are used; relative ones are of no excerpt so far."""
    if not isinstance(node, (ast.Import, ast.ImportFrom)) or (isinstance(node, ast.ImportFrom) and node.level):
        return None
    names = [alias for alias in node.names if (alias.asname or alias.name).partition(".")[0] in used]
    if not names:
        return None
    return ast.Import(names) if isinstance(node, ast.Import) else ast.ImportFrom(node.module, names, 0)


def _is_outside(node: ast.Import | ast.ImportFrom) -> bool:
    """Whether an import is of something that the pooling code gets as it is installed here."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    relative = isinstance(node, ast.ImportFrom) and node.level > 0
    known = sys.stdlib_module_names | stubs.OUTSIDE
    return not relative and all(name.partition(".")[0] in known for name in names)


class _Redirected(ast.NodeTransformer):
    """Leads absolute imports to a private package, except those of what is installed here."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if not node.level and not _is_outside(node):
            node.module = f"{self.prefix}.{node.module}"
        return node

    def visit_Import(self, node: ast.Import) -> list[ast.AST]:
        return [self._one(alias) for alias in node.names]

    def _one(self, alias: ast.alias) -> ast.AST:
        if _is_outside(ast.Import([alias])):
            return ast.Import([alias])
        top = alias.name.partition(".")[0]
        if alias.asname:
            return ast.Import([ast.alias(f"{self.prefix}.{alias.name}", alias.asname)])
        # `import a.b` binds a, whose attribute b is found when it is asked for.
        return ast.ImportFrom(self.prefix, [ast.alias(top)], 0)


class _OwnLoader(SourceFileLoader):
    """Runs a module's own source with its imports redirected."""

    def get_code(self, fullname: str) -> CodeType:
        prefix = fullname.partition(".")[0]
        tree = _Redirected(prefix).visit(ast.parse(self.get_data(self.path), self.path))
        code: CodeType = compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)
        return code


class _StandIn(ModuleType):
    """A module that is not imported; its names are supplied when they are asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        prefix, _, module = self.__name__.partition(".")
        value = _trees[prefix].supply(module, name)
        setattr(self, name, value)
        return value


class _StandInLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: its names come when they are asked for."""


class _Finder(MetaPathFinder):
    """Finds the modules of every tree."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        prefix, _, module = fullname.partition(".")
        if prefix not in _trees:
            return None
        tree = _trees[prefix]
        file = tree.own_file(module)
        if file is None:
            if stubs.is_own(module) and not tree.sources.path(module).is_dir():
                raise SubjectError(f"the pooling layer imports {module}, but {tree.sources.root} has no such module")
            return ModuleSpec(fullname, _StandInLoader(), is_package=True)
        within = [str(file.parent)] if file.name == "__init__.py" else None
        return spec_from_file_location(
            fullname, file, loader=_OwnLoader(fullname, str(file)), submodule_search_locations=within
        )


sys.meta_path.insert(0, _Finder())
