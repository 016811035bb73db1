"""`LLM` gives the same vectors whatever the token budget, alone and together, and they are the model's."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.smoke.tiny import BLOCK_SIZE, BUDGET, MAX_MODEL_LEN, PROMPTS, TASKS, Rows, wrong

pytestmark = pytest.mark.filterwarnings("ignore")  # what vLLM warns of is not ours to mend

Serve = Callable[..., Any]


@pytest.fixture
def serve(model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Make an engine in this process, for one task and token budget."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from vllm import LLM
    from vllm.config import PoolerConfig
    from vllm.distributed import cleanup_dist_env_and_memory

    def make(task: str, token_budget: int, chunked: bool) -> Any:
        return LLM(
            model=str(model),
            runner="pooling",
            pooler_config=PoolerConfig(task=task),
            dtype="float32",
            max_model_len=MAX_MODEL_LEN,
            max_num_batched_tokens=token_budget,
            enable_chunked_prefill=chunked,
            max_num_seqs=4,
            block_size=BLOCK_SIZE,
            kv_cache_memory_bytes=1 << 20,
            gpu_memory_utilization=0.05,
            enforce_eager=True,
        )

    yield make
    gc.collect()
    cleanup_dist_env_and_memory()


def answers(engine: Any, task: str, prompts: list[list[int]]) -> list[Rows]:
    """The engine's results for prompts that are sent together."""
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    if task == "embed":
        embeddings = engine.embed(asked, use_tqdm=False)
        return [np.array(answer.outputs.embedding, dtype=np.float64) for answer in embeddings]
    return [answer.outputs.data.double().numpy() for answer in engine.encode(asked, pooling_task=task, use_tqdm=False)]


def counting_steps(engine: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by one with each step of the engine."""
    steps: list[int] = []
    step = engine.llm_engine.step

    def counted() -> Any:
        steps.append(1)
        return step()

    monkeypatch.setattr(engine.llm_engine, "step", counted)
    return steps


@pytest.mark.parametrize(("token_budget", "chunked"), [(8, True), (16, True), (MAX_MODEL_LEN, False)])
@pytest.mark.parametrize("task", TASKS)
def test_vectors_depend_on_the_prompt_alone(
    serve: Serve,
    due: dict[str, list[Rows]],
    monkeypatch: pytest.MonkeyPatch,
    task: str,
    token_budget: int,
    chunked: bool,
) -> None:
    engine = serve(task, token_budget, chunked)
    steps = counting_steps(engine, monkeypatch)
    together = answers(engine, task, PROMPTS)
    alone = [answers(engine, task, [prompt])[0] for prompt in PROMPTS]
    assert wrong(due[task], together) == []
    assert wrong(due[task], alone) == []
    # Or nothing was cut, and nothing has been shown.
    assert (len(steps) > 2 * len(PROMPTS)) == chunked


def test_a_wrong_vector_would_be_seen(due: dict[str, list[Rows]]) -> None:
    rows = np.concatenate(due["token_embed"])
    # The last prompt begins as the one before, and so do its rows.
    rows = rows[: -len(PROMPTS[-1])]
    distances = np.linalg.norm(rows[:, None] - rows[None], axis=-1) + np.eye(len(rows))
    assert distances.min() > 1_000 * BUDGET


def test_a_pooler_that_mixes_requests_up_is_seen(
    serve: Serve, due: dict[str, list[Rows]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = serve("token_embed", MAX_MODEL_LEN, False)
    from vllm.model_executor.layers.pooler.tokwise.methods import AllPool

    right = AllPool.forward
    monkeypatch.setattr(AllPool, "forward", lambda *given: right(*given)[::-1])
    assert wrong(due["token_embed"], answers(engine, "token_embed", PROMPTS))


def test_a_pooler_that_takes_another_token_is_seen(
    serve: Serve, due: dict[str, list[Rows]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = serve("embed", 8, True)
    from vllm.model_executor.layers.pooler.seqwise.methods import LastPool

    def first(pooler: Any, hidden_states: Any, pooling_metadata: Any) -> Any:
        return hidden_states[pooling_metadata.get_pooling_cursor().first_token_indices_gpu]

    monkeypatch.setattr(LastPool, "forward", first)
    # A prompt of one token has one row only, and so has the last chunk of some others.
    assert len(wrong(due["embed"], answers(engine, "embed", PROMPTS))) >= 4
