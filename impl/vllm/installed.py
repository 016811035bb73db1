"""The vLLM that is installed here, or lies in a directory, imported whole: a library of its classes.

Nothing of it is replaced but a model: its config, and the reading of a projector from its files. What vLLM imports
in turn must be installed.
"""

import copy
import importlib
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from impl.config import PoolerConfig, SubjectError
from impl.vllm.loader import Library, package_in
from impl.vllm.model import model_config

_put_first: list[Path] = []
"""The vllm package outside the environment that was put before its own, if any: one a process."""


class Installed(Library):
    """Classes by name, imported with all that vLLM imports; from a directory, if one is given.

    Raises:
        SubjectError: vLLM is not installed or not in the directory, or another one is in this process.
    """

    whole = True

    def __init__(self, directory: Path | None = None) -> None:
        _take_place(None if directory is None else package_in(directory))
        # A plain wheel asks for a platform at import; the pooling layer needs none.
        os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        # Releases that configure no logging of their own leave it to Python, which shows warnings.
        logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])
        found = find_spec("vllm")
        if found is None or found.origin is None:
            raise SubjectError(
                "vLLM is not installed here; name a release instead, such as vllm==0.33.0, or a directory as "
                "vllm@DIR (`tox -e vllm` makes an environment that has vLLM)"
            )
        super().__init__(Path(found.origin).parent)
        root = self.sources.root
        own = next(iter(distributions(name="vllm", path=[str(root.parent)])), None)
        self.version = own.version if own else ""
        """Empty for a checkout that was never built."""

    def excerpt(self, name: str) -> Any:
        """See `Library.excerpt`."""
        return getattr(self.load("vllm.model_executor.models.bert"), name, None)

    def load(self, module: str) -> ModuleType:
        """See `Library.load`."""
        return importlib.import_module(module)

    @contextmanager
    def config(self, config: PoolerConfig) -> Iterator[None]:
        """See `Library.config`."""
        from vllm.config import set_current_vllm_config

        made = copy.copy(_vllm_config(config.enable_chunked_prefill, config.async_scheduling))
        made.model_config = model_config(config)
        with ExitStack() as stack:
            stack.enter_context(set_current_vllm_config(made))
            for name in ("SequencePooler", "TokenPooler"):
                module = self.load(str(self.sources.where(name)))
                # It reads the projector from a model's files; the model is the scenario's head.
                stack.enter_context(patch.object(module, "_load_st_projector", lambda model: model.projector))
            yield


def _take_place(root: Path | None) -> None:
    """Have `import vllm` find this package, or the environment's.

    Raises:
        SubjectError: another one was imported or put first in this process.
    """
    loaded = sys.modules.get("vllm")
    there = _put_first[0] if _put_first else loaded and Path(str(loaded.__file__)).parent.resolve()
    if there == root or (root is None and not _put_first):
        return
    if root is None or there is not None:
        raise SubjectError(
            f"a process has room for one whole vLLM, and {there} is there already: run "
            f"{root or 'the installed one'} in another process"
        )
    _put_first.append(root)
    sys.path.insert(0, str(root.parent))
    importlib.invalidate_caches()


@cache
def _vllm_config(enable_chunked_prefill: bool, async_scheduling: bool) -> Any:
    from vllm.config import DeviceConfig, SchedulerConfig, VllmConfig

    made = VllmConfig(
        scheduler_config=SchedulerConfig(
            max_model_len=8192,
            max_num_batched_tokens=8192,
            max_num_seqs=256,
            is_encoder_decoder=False,
            enable_chunked_prefill=enable_chunked_prefill,
        ),
        device_config=DeviceConfig(device="cpu"),
    )
    # Construction overrules these two on a CPU; the pooler reads them off the config.
    made.scheduler_config.enable_chunked_prefill = enable_chunked_prefill
    made.scheduler_config.async_scheduling = async_scheduling
    return made
