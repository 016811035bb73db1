"""Lets the harness speak 0.33's metadata to any release: one entry for each change of API.

What a release lacks is read off its classes, never off its number, so that a checkout between two
releases, or one with its own changes, is served as it is. A release that has all of it is handed its
own classes, unwrapped.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from inspect import signature
from types import SimpleNamespace
from typing import Any, Final

import torch

from impl.vllm.loader import Library
from oracle import metadata as newest

_FLAGS: Final = ("use_activation", "normalize", "activation", "softmax")
"""What the flag for the activation is called: the first, and until 0.13 another one for some tasks."""


def api(library: Library) -> Any:
    """The classes through which the harness speaks to a release, in the shape of `oracle.metadata`."""
    return SimpleNamespace(
        PoolingParams=params_class(library["PoolingParams"]),
        # Until 0.12 nothing was kept between steps.
        PoolingStates=library["PoolingStates"] if library.has("PoolingStates") else newest.PoolingStates,
        PoolingMetadata=_metadata(library["PoolingMetadata"], library["PoolingCursor"]),
    )


def params_class(own: Any) -> Callable[..., Any]:
    """The release's PoolingParams, taking tasks and flags by the names they have now."""
    if "normalize" not in own.__struct_fields__:
        return own  # type: ignore[no-any-return]
    takes: dict[str, list[str]] = own().valid_parameters

    def params(task: str, use_activation: bool, **others: Any) -> Any:
        # Until 0.11.0 there was one token task.
        task = task if task in takes else "encode"
        flag = next(name for name in _FLAGS if name in takes[task])
        return own(task=task, **{flag: use_activation}, **others)

    return params


def _cursor(own: Any) -> Any:
    """The release's PoolingCursor, with the lengths that it may lack."""
    if _has(own, "seq_lens_cpu"):
        return own

    @dataclass
    class Cursor(own):  # type: ignore[misc]
        """Until 0.12 a cursor did not know how far its requests had come."""

        seq_lens_cpu: Any = None

        def __getitem__(self, indices: slice) -> Any:
            return _more(Cursor, super().__getitem__(indices), seq_lens_cpu=self.seq_lens_cpu[indices])

    return Cursor


def _metadata(own: Any, own_cursor: Any) -> Any:
    """The release's PoolingMetadata or, if the harness needs more of it, a subclass with the rest."""
    takes = signature(own.build_pooling_cursor).parameters
    if "query_start_loc_gpu" in takes and _has(own, "prompt_token_ids_cpu"):
        return own
    cursor_class = _cursor(own_cursor)

    @dataclass
    class Metadata(own):  # type: ignore[misc]
        """Until 0.18 there were no token ids on the host, until 0.12 no states and no list of tasks."""

        pooling_states: Any = None
        pooling_cursor: Any = None
        prompt_token_ids_cpu: Any = None

        def __post_init__(self) -> None:
            if hasattr(own, "__post_init__"):
                super().__post_init__()
            else:
                self.tasks = [params.task for params in self.pooling_params]

        def __getitem__(self, indices: slice) -> Any:
            ids = self.prompt_token_ids_cpu
            return _more(
                Metadata,
                super().__getitem__(indices),
                pooling_states=self.pooling_states[indices],
                prompt_token_ids_cpu=None if ids is None else ids[indices],
            )

        def build_pooling_cursor(
            self, counts: Any, seq_lens_cpu: torch.Tensor, device: torch.device, query_start_loc_gpu: Any = None
        ) -> None:
            """Until 0.18 row offsets were not taken, until 0.13 counts were a list, until 0.12 lengths not taken."""
            given = {
                "num_scheduled_tokens_np": counts,
                "num_scheduled_tokens": counts.tolist(),
                "seq_lens_cpu": seq_lens_cpu,
                "device": device,
                "query_start_loc_gpu": query_start_loc_gpu,
            }
            super().build_pooling_cursor(**{name: value for name, value in given.items() if name in takes})
            if cursor_class is not own_cursor:
                self.pooling_cursor = _more(cursor_class, self.pooling_cursor, seq_lens_cpu=seq_lens_cpu.clone())

    return Metadata


def _more(kind: Any, plain: Any, **rest: Any) -> Any:
    """An instance of a subclass, from one of its base class and the fields that it adds."""
    return kind(**{field.name: getattr(plain, field.name) for field in fields(plain)} | rest)


def _has(kind: Any, name: str) -> bool:
    return any(field.name == name for field in fields(kind))
