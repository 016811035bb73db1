"""What a model may have around methods and heads, in releases whose faults are known: found there, gone since."""

from typing import Any

import pytest
import torch

from fuzz.start import run
from fuzz.verdict import Verdict
from oracle.scenario import ACTIVATION_NAMES, PROBLEM_TYPES, Head, Model, Options, Request, Scenario, Step
from tests.releases import release

pytestmark = pytest.mark.releases
CPU = torch.device("cpu")
DENSE_AND_SPARSE: Any = "embed&token_classify"
NEWEST = "0.33.0"


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


@pytest.mark.parametrize(
    ("version", "verdict"), [("0.11.1", Verdict.VIOLATES), ("0.18.1", Verdict.VIOLATES), ("0.19.0", Verdict.HOLDS)]
)
def test_a_regression_of_tokens(version: str, verdict: Verdict) -> None:
    subject = release(version)
    scores = one_step(
        Request("a", "token_classify", (1, 1)),
        rows=subject.rows[0], enable_chunked_prefill=False,
        head=Head(head_dtype="float32", num_labels=1, problem_type="regression"),
    )  # fmt: skip
    assert run(scores, subject, CPU).verdict is verdict


@pytest.mark.parametrize("version", ["0.11.0", "0.13.0", "0.18.1", "0.20.2", NEWEST])
@pytest.mark.parametrize("problem_type", [None, *PROBLEM_TYPES])
@pytest.mark.parametrize("num_labels", [1, 3])
def test_the_activation_of_a_classifier_follows_the_problem_type(
    version: str, problem_type: Any, num_labels: int
) -> None:
    subject = release(version)
    head = Head(head_dtype="float32", num_labels=num_labels, problem_type=problem_type)
    labels = one_step(Request("a", "classify", (1, 1)), rows=subject.rows[0], head=head)
    assert run(labels, subject, CPU).verdict is Verdict.HOLDS


@pytest.mark.parametrize("version", ["0.19.1", "0.28.0", NEWEST])
@pytest.mark.parametrize(
    ("activation_fn", "num_labels", "verdict"),
    [
        *((name, 1, Verdict.HOLDS) for name in ACTIVATION_NAMES),
        *((name, 3, Verdict.HOLDS) for name in ACTIVATION_NAMES if name != "Sigmoid"),
        ("Sigmoid", 3, Verdict.VIOLATES),
    ],
)
def test_the_activation_that_a_cross_encoder_names(
    version: str, activation_fn: Any, num_labels: int, verdict: Verdict
) -> None:
    subject = release(version)
    head = Head(num_labels=num_labels, activation_fn=activation_fn)
    labels = one_step(Request("a", "classify", (1, 1)), rows=subject.rows[0], head=head)
    assert run(labels, subject, CPU).verdict is verdict


@pytest.mark.parametrize("version", ["0.14.1", "0.20.2", NEWEST])
def test_what_the_factory_of_classifiers_wires_is_what_is_judged(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = release(version)
    dispatcher = subject.build.__self__.library["DispatchPooler"]  # type: ignore[attr-defined]
    right = dispatcher.for_seq_cls
    labels = one_step(Request("a", "classify", (1,)), rows=subject.rows[0], head=Head(num_labels=2))
    assert run(labels, subject, CPU).verdict is Verdict.HOLDS
    # A factory that forgets the classifier.
    monkeypatch.setattr(
        dispatcher, "for_seq_cls", lambda settings, pooling, classifier: right(settings, pooling=pooling)
    )
    assert run(labels, subject, CPU).contract == "row-count"


@pytest.mark.parametrize("version", ["0.19.1", "0.28.0", NEWEST])
@pytest.mark.parametrize("seq_pooling_type", ["CLS", "LAST", "MEAN"])
def test_dense_and_sparse_behind_a_filter(version: str, seq_pooling_type: str) -> None:
    subject = release(version)
    scenario = one_step(
        Request("a", DENSE_AND_SPARSE, (101, 10, 102)), Request("b", DENSE_AND_SPARSE, (10,), use_activation=False),
        rows=subject.rows[0], enable_chunked_prefill=False, seq_pooling_type=seq_pooling_type,
        bos_token_id=101, eos_token_id=102, head=Head(num_labels=1),
    )  # fmt: skip
    judgement = run(scenario, subject, CPU)
    assert (judgement.verdict, judgement.comparisons) == (Verdict.HOLDS, 2)


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 5])
@pytest.mark.parametrize("head_dtype", [None, "float32", "float16"])
def test_late_chunking_over_the_steps_of_a_prompt(chunk_size: int, head_dtype: Any) -> None:
    request = Request("a", "token_embed", (101, 10, 11, 12, 102), chunk_size=chunk_size, dimensions=3)
    steps = (Step((("a", 2),)), Step((("a", 3),)))
    options = Options(level="pooler", dtype="bfloat16", content="float", head=Head(head_dtype=head_dtype))
    assert run(Scenario((request,), steps, options), release(NEWEST), CPU).verdict is Verdict.HOLDS


def test_late_chunking_of_another_task_is_refused() -> None:
    asked = Scenario((Request("a", "embed", (1,), chunk_size=1),), (), Options(level="pooler", model=Model()))
    judgement = run(asked, release(NEWEST), CPU)
    assert (judgement.verdict, judgement.comparisons) == (Verdict.HOLDS, 1)
