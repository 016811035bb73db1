"""Whether anything that a subject's pooling depends on has changed since a commit."""

import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from impl.builtin import BUILTIN
from impl.config import SubjectError

VLLM_LAYER: Final = (
    "vllm/model_executor/layers/pooler", "vllm/model_executor/layers/pooler.py", "vllm/v1/pool",
    "vllm/pooling_params.py", "vllm/v1/worker", "vllm/v1/core/sched",
)  # fmt: skip
"""In a checkout of vLLM: the pooling layer and its callers."""


def changed_since(ref: str, specs: Sequence[str]) -> list[str]:
    """Files that bear on one of the subjects and differ from the commit, those not yet added included.

    Raises:
        SubjectError: git can't compare with it.
    """
    top = Path(_git("rev-parse", "--show-toplevel").strip())
    names = _git("-C", str(top), "diff", "--name-only", ref, "--").splitlines()
    names += _git("-C", str(top), "ls-files", "--others", "--exclude-standard").splitlines()
    watched = [path for spec in specs for path in _watched(spec, top)]
    return [name for name in names if any((top / name).is_relative_to(path) for path in watched)]


def _watched(spec: str, top: Path) -> list[Path]:
    """Files and directories that bear on a subject."""
    if spec in BUILTIN:
        package = Path(__file__).parent.parent
        return [package / name for name in ("fuzz", "impl", "oracle")]
    if spec.split("=")[0].split("@")[0] == "vllm":
        return [top / path for path in VLLM_LAYER]
    where = spec.rpartition(":")[0]
    if where.endswith(".py"):
        return [Path(where).resolve()]
    try:
        found = find_spec(where)
    except (ImportError, ValueError):
        found = None
    # A module that can't be found is looked for, and missed with a reason, by the check itself.
    return [Path(found.origin).parent] if found is not None and found.origin else [top]


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        raise SubjectError("--since needs git, which isn't installed here") from None
    except subprocess.CalledProcessError as error:
        raise SubjectError(f"--since can't compare: {error.stderr.strip()}") from None
