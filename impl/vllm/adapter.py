"""Lets the harness speak 0.33's metadata to any release: one entry for each change of API.

What a release lacks is read off its classes, never off its number, so that a checkout between two
releases, or one with its own changes, is served as it is. A release that has all of it is handed its
own classes, unwrapped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from inspect import signature
from types import SimpleNamespace
from typing import Any, Final

import torch

from impl.config import ModelConfig, Outputs
from impl.vllm.loader import Library
from oracle import metadata as newest

_FLAGS: Final = ("use_activation", "normalize", "activation", "softmax")
"""What the flag for the activation is called: the first, and until 0.13 another one for some tasks."""


def api(library: Library) -> Any:
    """The classes through which the harness speaks to a release, in the shape of `oracle.metadata`."""
    return SimpleNamespace(
        PoolingParams=params_class(library["PoolingParams"]),
        LateInteractionParams=library["LateInteractionParams"] if library.has("LateInteractionParams") else None,
        LateChunkingParams=library["LateChunkingParams"] if library.has("LateChunkingParams") else None,
        # Until 0.12 nothing was kept between steps.
        PoolingStates=library["PoolingStates"] if library.has("PoolingStates") else newest.PoolingStates,
        PoolingMetadata=_metadata(library["PoolingMetadata"], library["PoolingCursor"]),
    )


def params_class(own: Any) -> Callable[..., Any]:
    """The release's PoolingParams, taking tasks and flags by the names they have now."""
    if "normalize" not in own.__struct_fields__:
        return own  # type: ignore[no-any-return]
    takes: dict[str, list[str]] = own().valid_parameters

    def params(task: str, use_activation: bool | None, **others: Any) -> Any:
        # Until 0.11.0 there was one token task.
        task = task if task in takes else "encode"
        flag = next(name for name in _FLAGS if name in takes[task])
        return own(task=task, **{flag: use_activation}, **others)

    return params


def verify(params: Any, model_config: ModelConfig) -> None:
    """The release's own verification of its params, against as much of a model as it reads."""
    is_token_task = params.task in ("token_embed", "token_classify", "encode")
    tok_type, seq_type = model_config.tok_pooling_type, model_config.seq_pooling_type
    pooler_config = SimpleNamespace(
        tok_pooling_type=tok_type,
        seq_pooling_type=seq_type,
        # Until 0.13 a model had one for all of its tasks.
        pooling_type=tok_type if is_token_task else seq_type,
    )
    model = SimpleNamespace(
        served_model_name="model",
        embedding_size=model_config.embedding_size,
        is_matryoshka=model_config.is_matryoshka,
        matryoshka_dimensions=None
        if model_config.matryoshka_dimensions is None
        else list(model_config.matryoshka_dimensions),
        pooler_config=pooler_config,
    )
    # Until 0.15 the task was given once more.
    twice = "task" in signature(params.verify).parameters
    try:
        params.verify(params.task, model) if twice else params.verify(model)
    except Exception as error:
        # From 0.30 on a refusal has a class of its own.
        if any(kind.__name__ == "VLLMValidationError" for kind in type(error).__mro__):
            raise ValueError(str(error)) from error
        raise


class LateInteraction:
    """A release's own runner of late interaction, under the names that the harness calls."""

    def __init__(self, library: Library) -> None:
        runner = library["LateInteractionRunner"]
        # The fused kernel of 0.32 is Triton's and runs on CUDA alone; without it documents are scored as before.
        fused = {} if library.whole or "enable_flash" not in signature(runner).parameters else {"enable_flash": False}
        self.runner = runner(**fused)
        self.register = self.runner.register_request
        self.gone = self.runner.on_requests_finished

    def release(self, query_keys: Sequence[str]) -> None:
        """Until 0.31 nobody was told that a client had gone."""
        if hasattr(self.runner, "release_queries"):
            self.runner.release_queries(query_keys)

    def score(self, outputs: Outputs, params: Sequence[Any], names: Sequence[str], finished: Sequence[bool]) -> Outputs:
        """See `impl.config.LateInteraction`."""
        scored: Outputs = self.runner.postprocess_pooler_output(outputs, list(params), list(names), list(finished))
        return scored

    def kept(self) -> Any:
        """See `impl.config.LateInteraction`."""
        return self.runner


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
