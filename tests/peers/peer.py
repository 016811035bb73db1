"""Peers by name. `tox -e peers` installs them all, and there a missing one is an error; elsewhere its tests skip."""

import importlib
import importlib.util
import os
import sys
import warnings
from types import ModuleType
from typing import Any

import pytest
import torch


def peer(name: str) -> Any:
    """A module of a peer; the test that asks for one that is not installed is skipped, with the reason."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if "POOLPROOF_PEERS" in os.environ:
            return importlib.import_module(name)
        return pytest.importorskip(name, reason=f"{name.partition('.')[0]} is not installed; `tox -e peers` has it")


def fbgemm() -> Any:
    """The jagged operators of fbgemm."""
    peer("fbgemm_gpu")
    return torch.ops.fbgemm


def flag_embedder(monkeypatch: pytest.MonkeyPatch) -> Any:
    """FlagEmbedding's M3 embedder class, from its own file.

    The package as a whole imports what trains and downloads models. The one import that leads there is
    answered with a bare parent class; the pooling is all in the class itself.
    """
    found = importlib.util.find_spec("FlagEmbedding")
    if found is None or not found.submodule_search_locations:
        return peer("FlagEmbedding")
    parent: Any = ModuleType("FlagEmbedding.abc.finetune.embedder")
    parent.AbsEmbedderModel, parent.EmbedderOutput = object, object
    monkeypatch.setitem(sys.modules, parent.__name__, parent)
    peer("transformers")
    path = f"{found.submodule_search_locations[0]}/finetune/embedder/encoder_only/m3/modeling.py"
    spec = importlib.util.spec_from_file_location("flag_m3", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.EncoderOnlyEmbedderM3Model
