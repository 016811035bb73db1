"""The vLLM that is installed here, as a library of its classes: nothing of it is replaced."""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from impl.config import PoolerConfig, SubjectError
from impl.vllm.loader import Library


class Installed(Library):
    """Classes by name, imported with all that vLLM imports.

    Raises:
        SubjectError: vLLM is not installed.
    """

    whole = True

    def __init__(self) -> None:
        # A plain wheel asks for a platform at import; the pooling layer needs none.
        os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        found = find_spec("vllm")
        if found is None or found.origin is None:
            raise SubjectError(
                "vLLM is not installed here; name a release instead, such as vllm==0.33.0, or a directory as "
                "vllm@DIR (`tox -e vllm` makes an environment that has vLLM)"
            )
        super().__init__(Path(found.origin).parent)
        self.version = version("vllm")

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

        with set_current_vllm_config(_vllm_config(config.enable_chunked_prefill, config.async_scheduling)):
            yield


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
