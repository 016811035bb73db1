"""What a model may have around methods and heads, in releases whose faults are published: found there, gone since."""

import pytest
import torch

from fuzz.start import run
from fuzz.verdict import Verdict
from oracle.scenario import Head, Model, Options, Request, Scenario, Step
from tests.releases import release

pytestmark = pytest.mark.releases
CPU = torch.device("cpu")


def one_step(*requests: Request, **options: object) -> Scenario:
    scheduled = tuple((request.name, request.prompt_len) for request in requests)
    return Scenario(requests, (Step(scheduled),), Options(level="pooler", **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(("version", "verdict"), [("0.15.1", Verdict.VIOLATES), ("0.16.0", Verdict.HOLDS)])
def test_one_token_left_between_bos_and_eos(version: str, verdict: Verdict) -> None:
    # https://github.com/vllm-project/vllm/issues/33873
    filtered = one_step(
        Request("a", "token_embed", (101, 10, 102)),
        rows="step", enable_chunked_prefill=False, bos_token_id=101, eos_token_id=102,
    )  # fmt: skip
    judgement = run(filtered, release(version), CPU)
    assert judgement.verdict is verdict
    assert judgement.contract == ("row-count" if verdict is Verdict.VIOLATES else "")


@pytest.mark.parametrize(
    ("version", "verdict"), [("0.11.0", Verdict.VIOLATES), ("0.23.0", Verdict.VIOLATES), ("0.24.0", Verdict.HOLDS)]
)
def test_more_dimensions_than_there_are(version: str, verdict: Verdict) -> None:
    # https://github.com/vllm-project/vllm/pull/46313
    asked = Scenario((Request("a", "embed", (1,), dimensions=5),), (), Options(level="pooler", model=Model()))
    judgement = run(asked, release(version), CPU)
    assert judgement.verdict is verdict
    assert judgement.contract == ("refuses-impossible-params" if verdict is Verdict.VIOLATES else "")


@pytest.mark.parametrize(("version", "verdict"), [("0.24.0", Verdict.VIOLATES), ("0.26.0", Verdict.HOLDS)])
def test_more_dimensions_than_there_are_in_the_models_own_list(version: str, verdict: Verdict) -> None:
    # https://github.com/vllm-project/vllm/pull/46313
    model = Model(matryoshka_dimensions=(2, 5))
    asked = Scenario((Request("a", "embed", (1,), dimensions=5),), (), Options(level="pooler", model=model))
    assert run(asked, release(version), CPU).verdict is verdict


@pytest.mark.parametrize(
    ("version", "verdict"), [("0.14.0", Verdict.VIOLATES), ("0.30.0", Verdict.VIOLATES), ("0.31.0", Verdict.HOLDS)]
)
def test_berts_dense_layer_without_an_activation(version: str, verdict: Verdict) -> None:
    # https://github.com/vllm-project/vllm/pull/57664
    subject = release(version)
    plain = one_step(
        Request("a", "classify", (1,), use_activation=False), rows=subject.rows[0], head=Head(num_labels=2, dense=True)
    )
    judgement = run(plain, subject, CPU)
    assert judgement.verdict is verdict
    assert judgement.contract == ("values" if verdict is Verdict.VIOLATES else "")


@pytest.mark.parametrize(("version", "verdict"), [("0.31.0", Verdict.VIOLATES), ("0.32.0", Verdict.HOLDS)])
def test_a_client_that_goes_before_its_documents_are_scheduled(version: str, verdict: Verdict) -> None:
    # https://github.com/vllm-project/vllm/pull/56617
    requests = (Request("a", "token_embed", (1,)), Request("b", "token_embed", (1,), query="a"))
    steps = (Step((("a", 1),)), Step((), aborted=("b",)))
    judgement = run(Scenario(requests, steps, Options(level="pooler")), release(version), CPU)
    assert judgement.verdict is verdict
    assert judgement.contract == ("query-is-let-go" if verdict is Verdict.VIOLATES else "")
