"""Everything about a scenario that does not depend on the subject: rows, token ids, what is due."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import torch

from impl.config import HeadConfig, Lack, ModelConfig, PoolerConfig, Subject
from oracle import reference
from oracle.contracts import ANYTHING, Anything
from oracle.device.memory import data
from oracle.reference import Expected
from oracle.rows import Universe
from oracle.scenario import DENSE_AND_SPARSE, PoolingType, Request, Scenario, model_width


class World:
    """A scenario made concrete on a device; several subjects can be run in one world."""

    def __init__(self, scenario: Scenario, device: torch.device) -> None:
        self.scenario = scenario
        self.device = device
        self.universe = Universe(scenario, device)
        self.requests = {request.name: request for request in scenario.requests}
        self.pooling_types: dict[str, PoolingType] = {
            request.name: scenario.pooling_type(request) for request in scenario.requests
        }
        self.needs_token_ids = (
            "STEP" in self.pooling_types.values() or scenario.options.filters_special_tokens
        ) and bool(self.requests)
        self.documents: dict[str, list[str]] = {}
        """The documents of each query."""
        for request in scenario.requests:
            if request.query is not None:
                self.documents.setdefault(request.query, []).append(request.name)
        self._expected: dict[str, Expected] = {}
        if self.needs_token_ids:
            self._place = {name: place for place, name in enumerate(self.requests)}
            self._token_ids = self._pad_token_ids()
            self._token_ids_on_device = self._token_ids.to(device)

    def expected(self, name: str) -> Expected:
        """The result due to a request once it is finished; late interaction makes scores of rows."""
        query = self.requests[name].query
        if query is not None:
            return reference.maxsim(self.rows_due(query), self.rows_due(name))
        return reference.NO_SCORE if name in self.documents else self.rows_due(name)

    def rows_due(self, name: str) -> Expected:
        """What a request's own rows come to."""
        if name not in self._expected:
            request, options = self.requests[name], self.scenario.options
            rows = data(self.universe.of(name, 0, request.prompt_len))
            self._expected[name] = (
                reference.pool(self.pooling_types[name], rows, request)
                if options.level == "method"
                else reference.serve(rows, request, options)
            )
        return self._expected[name]

    def due(self, name: str, finished: bool) -> Expected | Anything | None:
        """What a step owes a request, by whether it is finished in it."""
        return self.expected(name) if finished else self._unfinished(name)

    def pooled(self, name: str, finished: bool) -> Expected | Anything | None:
        """The same of a pooler whose rows are scored by others."""
        return self.rows_due(name) if finished else self._unfinished(name)

    def _unfinished(self, name: str) -> Anything | None:
        # A sequence pooler hands out a row for everyone; the engine drops those of unfinished requests.
        return None if self.requests[name].is_token_task else ANYTHING

    def token_ids(self, names: Sequence[str]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Padded prompt token ids (n, longest) on the device and on the host, if any pooler needs them."""
        if not self.needs_token_ids:
            return None, None
        places = [self._place[name] for name in names]
        index = torch.tensor(places, dtype=torch.int64)
        return self._token_ids_on_device[index.to(self.device, non_blocking=True)], self._token_ids[index]

    def config(self, pooling_type: str = "ALL") -> PoolerConfig:
        """What the subject's factory is called with."""
        options, head = self.scenario.options, self.scenario.options.head
        return PoolerConfig(
            pooling_type=pooling_type,
            enable_chunked_prefill=options.enable_chunked_prefill,
            async_scheduling=options.async_scheduling,
            rows=options.rows,
            tok_pooling_type=options.tok_pooling_type,
            seq_pooling_type=options.seq_pooling_type,
            bos_token_id=options.bos_token_id,
            eos_token_id=options.eos_token_id,
            head=HeadConfig(
                head_dtype=None if head.head_dtype is None else getattr(torch, head.head_dtype),
                projector=None
                if head.embedding_size is None
                else reference.projector(head.embedding_size, options.seed),
                classifier=None if head.num_labels is None else reference.classifier(head.num_labels, options.seed),
                logit_mean=head.logit_mean,
                logit_sigma=head.logit_sigma,
                dense=reference.dense(options.hidden_size, options.seed) if head.dense else None,
                num_labels=options.hidden_size if head.num_labels is None else head.num_labels,
                problem_type=head.problem_type,
                activation_fn=head.activation_fn,
            ),
        )

    @property
    def padding_token_id(self) -> int:
        """A tag or EOS, so that a pooler that reads past a prompt's end finds a step or an end there."""
        tags = [request.step_tag_id for request in self.requests.values() if request.step_tag_id is not None]
        return tags[0] if tags else self.scenario.options.eos_token_id or 0

    def model_config(self) -> ModelConfig | None:
        """What params are verified against, if they are."""
        options = self.scenario.options
        if options.model is None:
            return None
        return ModelConfig(
            embedding_size=model_width(options),
            is_matryoshka=options.model.is_matryoshka,
            matryoshka_dimensions=options.model.matryoshka_dimensions,
            tok_pooling_type=options.tok_pooling_type,
            seq_pooling_type=options.seq_pooling_type,
        )

    def _pad_token_ids(self) -> torch.Tensor:
        longest = max(request.prompt_len for request in self.requests.values())
        padded = np.full((len(self.requests), longest), self.padding_token_id, dtype=np.int64)
        for place, request in enumerate(self.requests.values()):
            padded[place, : request.prompt_len] = request.prompt_token_ids
        return torch.from_numpy(padded)


def params_of(request: Request, subject: Subject, documents: Sequence[str] = ()) -> Any:
    """The request's pooling params in the subject's own class; `documents` are scored against it."""
    return subject.api.PoolingParams(**params_given(request, subject, documents))


def params_given(request: Request, subject: Subject, documents: Sequence[str] = ()) -> dict[str, Any]:
    """Those of the request's pooling params that are set; see `params_of`."""
    optional: dict[str, Any] = {"task": request.task, "use_activation": request.use_activation}
    if request.dimensions is not None:
        optional["dimensions"] = request.dimensions
    if request.step_tag_id is not None:
        optional["step_tag_id"] = request.step_tag_id
    if request.returned_token_ids is not None:
        optional["returned_token_ids"] = list(request.returned_token_ids)
    if request.query is not None:
        late = subject.api.LateInteractionParams(mode="score_doc", query_key=request.query)
        optional["late_interaction_params"] = late
    elif documents:
        optional["late_interaction_params"] = subject.api.LateInteractionParams(
            mode="cache_query", query_key=request.name, query_uses=len(documents)
        )
    if request.chunk_size is not None:
        optional["late_chunking_params"] = subject.api.LateChunkingParams(chunk_size=request.chunk_size)
    return optional


def as_called(subject: Subject, scenario: Scenario) -> Scenario:
    """The scenario as the subject can be asked for it: its calling convention, and no more than it has."""
    options = scenario.options
    changes: dict[str, Any] = {}
    if options.rows not in subject.rows:
        changes["rows"] = subject.rows[0]
    if "open-head-dtype" in subject.lacks and options.level != "method" and options.head.head_dtype is None:
        changes["head"] = msgspec.structs.replace(options.head, head_dtype="float32")
    if "chunked-token-tasks" in subject.lacks and _comes_whole(scenario):
        changes["enable_chunked_prefill"] = False
    return msgspec.structs.replace(scenario, options=msgspec.structs.replace(options, **changes))


def _comes_whole(scenario: Scenario) -> bool:
    """Whether there are token tasks, and each one's prompt is computed in one step."""
    lengths = {request.name: request.prompt_len for request in scenario.requests if request.is_token_task}
    return bool(lengths) and all(
        count == lengths.get(name, count) for step in scenario.steps for name, count in step.scheduled
    )


def supports(subject: Subject, scenario: Scenario) -> bool:
    """Whether the scenario asks the subject only for what it says it serves."""
    options = scenario.options
    return (
        options.level in subject.levels
        and options.rows in subject.rows
        and all(scenario.pooling_type(request) in subject.supports for request in scenario.requests)
        and not any(_needs(scenario, lack) for lack in subject.lacks)
    )


def _needs(scenario: Scenario, lack: Lack) -> bool:
    """Whether a scenario can't do without what a subject lacks."""
    options, head = scenario.options, scenario.options.head
    if lack == "async-scheduling":
        return options.async_scheduling
    if lack == "chunked-token-tasks":
        return options.enable_chunked_prefill and any(request.is_token_task for request in scenario.requests)
    if options.level == "method":
        return False
    match lack:
        case "bos-eos-filter":
            return options.filters_special_tokens
        case "late-interaction":
            return any(request.query is not None for request in scenario.requests)
        case "dense-head":
            return head.dense
        case "params-verification":
            return options.model is not None
        case "models-activation":
            return head.names_an_activation
        case "named-activation":
            return head.activation_fn is not None
        case "late-chunking":
            return any(request.chunk_size is not None for request in scenario.requests)
        case "dense-and-sparse":
            return any(request.task == DENSE_AND_SPARSE for request in scenario.requests)
        case "chunked-bos-eos-filter":
            return options.filters_special_tokens and options.enable_chunked_prefill
        case "logit-sigma":
            return head.logit_sigma is not None
        case "open-head-dtype":
            return head.head_dtype is None
        case "token-heads":
            classifies = (head.num_labels, head.logit_mean) != (None, None) or head.names_an_activation
            return any(request.is_token_task and (classifies or request.task == "token_embed")
                       for request in scenario.requests)  # fmt: skip
