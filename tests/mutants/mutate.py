"""Make mutants with cosmic-ray and put each before its judges, in a forked process of its own.

Cosmic-ray says what can be changed and changes it; its own loop would start an interpreter for each mutant, and to
import torch takes longer than most mutants live. The parent imports what is not ours, once; a child imports the
rest, with the mutant in it, from a copy of the tree.
"""

import compileall
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Final

import hypothesis  # noqa: F401 - imported before the fork, so that children needn't
import numpy as np  # noqa: F401
import pytest  # noqa: F401
import torch
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT: Final = Path(__file__).parents[2]
OURS: Final = ("oracle", "impl", "fuzz", "tests", "conftest")
IN_ANNOTATIONS: Final = "core/ReplaceBinaryOperator_BitOr_"
"""`|` is written in annotations, where a change is an error at import or nothing at all."""
TIMEOUT_S: Final = 300
LATER_NS: Final = 10**13

Judge = Callable[[str], str]


@dataclass(frozen=True)
class Mutant:
    """One change in one place. `was` and `becomes` are the lines that differ, stripped."""

    module: str
    operator: str
    was: str
    becomes: str
    source: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is argued under; lines may move."""
        return self.module, self.was, self.becomes


Place = tuple[str, str, int]
"""A module, an operator of cosmic-ray's, and the how-manieth of the places at which it applies."""


def places(module: str) -> Iterator[Place]:
    """Where a module can be changed, types aside."""
    tree = get_ast((ROOT / module).read_text(encoding="utf-8"))
    for name in operator_names():
        kind = get_operator(name)
        if not (name.startswith(IN_ANNOTATIONS) or kind.arguments()):
            count = sum(1 for node in ast_nodes(tree) for _ in kind().mutation_positions(node))
            yield from ((module, name, occurrence) for occurrence in range(count))


def mutant(place: Place) -> Mutant:
    """The change at a place."""
    module, name, occurrence = place
    source = (ROOT / module).read_text(encoding="utf-8")
    mutated: str = mutate_code(source, get_operator(name)(), occurrence)
    diff = list(unified_diff(source.splitlines(), mutated.splitlines(), n=0))[2:]
    was, becomes = (" ".join(line[1:].strip() for line in diff if line[0] == sign).strip() for sign in "-+")
    return Mutant(module, name.removeprefix("core/"), was, becomes, mutated)


def sample(there: Sequence[Place], count: int | None, seed: int) -> Sequence[Place]:
    """All of them, or so many, in their order."""
    if count is None or count >= len(there):
        return there
    return [there[at] for at in sorted(random.Random(seed).sample(range(len(there)), count))]


def copy_of_tree(directory: Path) -> Path:
    """A copy to mutate, compiled: the tree itself is never touched."""
    for name in (*OURS[:4], "conftest.py", "pyproject.toml", "docs"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / name, directory / name)
    compileall.compile_dir(directory, quiet=2)
    return directory


def put_before(tree: Path, mutant: Mutant, judges: Sequence[Judge]) -> str:
    """What the judges noticed of a mutant of the copied tree, the first that did; empty if none did."""
    path = tree / mutant.module
    source, times = path.read_bytes(), path.stat()
    path.write_text(mutant.source, encoding="utf-8")
    # Compiled files are told apart by size and time.
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + LATER_NS))
    try:
        return noticed(tree, mutant.module, judges)
    finally:
        path.write_bytes(source)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def noticed(tree: Path, module: str, judges: Sequence[Judge]) -> str:
    """What the first of the judges that notices anything has to say on a module as it stands."""
    return next((said for judge in judges if (said := _forked(tree, module, judge))), "")


def _forked(tree: Path, module: str, judge: Judge) -> str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        signal.alarm(TIMEOUT_S)
        _alone(tree, module, judge, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        said = told.read().decode()
    _, status = os.waitpid(child, 0)
    if status == 0:
        return said
    return "no end" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM else "a crash"


def _alone(tree: Path, module: str, judge: Judge, writer: int) -> None:
    try:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        os.chdir(tree)
        torch.set_num_threads(1)
        sys.dont_write_bytecode = True
        sys.path[:] = [str(tree), *(path for path in sys.path if Path(path or ".").resolve() != ROOT)]
        for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
            del sys.modules[name]
        try:
            said = judge(module)
        except Exception as error:
            said = f"{type(error).__name__} at import or in the judge"
        os.write(writer, said.encode())
    finally:
        os._exit(0)
