"""Right rows, sent through a head that does something else with them."""

from dataclasses import replace

import torch
from torch.linalg import vector_norm
from torch.nn.functional import normalize

from impl.config import HeadConfig, Outputs, PoolerConfig
from impl.pooler import finish
from oracle.metadata import PoolingParams
from tests.zoo.joints import Layer, head_of
from tests.zoo.register import bad_layer

Results = list[torch.Tensor | None]
EMBED = ("embed", "token_embed")


class Apart(Layer):
    """A layer whose norm, logits, calibration and activation stand apart."""

    def __init__(self, config: PoolerConfig) -> None:
        super().__init__(config)
        self.mean, self.sigma = self.head.logit_mean or 0.0, self.head.logit_sigma or 1.0

    def one(self, task: str, rows: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        if task in EMBED:
            plain = super().one(task, rows, replace(params, use_activation=False))
            return self.normalized(plain) if params.use_activation else plain
        return self.score(self.logits(rows), params)

    def normalized(self, plain: torch.Tensor) -> torch.Tensor:
        return normalize(plain, dim=-1, eps=torch.finfo(plain.dtype).tiny)

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        plain = replace(self.head, logit_mean=None, logit_sigma=None)
        return head_of("classify", rows, PoolingParams(use_activation=False), plain)

    def score(self, logits: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        return self.activated(self.calibrated(logits), params)

    def calibrated(self, logits: torch.Tensor) -> torch.Tensor:
        return (logits - self.mean) / self.sigma

    def activated(self, logits: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        return finish("classify", logits, params, self.head)


@bad_layer("values")
class InfinityClamped(Apart):
    """Logits are clamped to the dtype's range, so that JSON can hold them; a client takes them for numbers."""

    def calibrated(self, logits: torch.Tensor) -> torch.Tensor:
        most = torch.finfo(logits.dtype).max
        return super().calibrated(logits).clamp(-most, most)


@bad_layer("row-count")
class DimensionsOfTheNeighbour(Layer):
    """The list of dimensions was made in another order than the results."""

    def heads(self, task: str, pooled: Outputs, params: list[PoolingParams]) -> Results:
        others = params[1:] + params[:1]
        mixed = [replace(own, dimensions=other.dimensions) for own, other in zip(params, others, strict=True)]
        return list(super().heads(task, pooled, mixed))


@bad_layer("row-count")
class DimensionsOfTheFirst(Layer):
    """The group is cut in one operation, to the first request's dimensions."""

    def heads(self, task: str, pooled: Outputs, params: list[PoolingParams]) -> Results:
        return list(super().heads(task, pooled, [replace(own, dimensions=params[0].dimensions) for own in params]))


@bad_layer("values")
class ActivationOfTheFirst(Layer):
    """Whether to activate is asked once a group."""

    def heads(self, task: str, pooled: Outputs, params: list[PoolingParams]) -> Results:
        mixed = [replace(own, use_activation=params[0].use_activation) for own in params]
        return list(super().heads(task, pooled, mixed))


@bad_layer("values")
class ActivationAlways(Layer):
    """The request's flag never reaches the head."""

    def one(self, task: str, rows: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        return super().one(task, rows, replace(params, use_activation=True))


@bad_layer("row-count")
class DimensionsCutTokens(Layer):
    """`rows[:dimensions]` is right for a vector, and cuts tokens of a matrix."""

    def one(self, task: str, rows: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        if params.dimensions is None:
            return super().one(task, rows, params)
        plain = super().one(task, rows, replace(params, dimensions=None, use_activation=False))
        return head_of(task, plain[: params.dimensions], replace(params, dimensions=None), HeadConfig())


@bad_layer("values", serves=("LAST",))
class NormalizedBeforeTheCut(Layer):
    """The vector is cut outside, once the head has normalized it."""

    def one(self, task: str, rows: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        return super().one(task, rows, replace(params, dimensions=None))[..., : params.dimensions]


@bad_layer("values", serves=("ALL",))
class NormalizedOverAllTokens(Apart):
    """The norm is taken over the matrix, not over each of its rows."""

    def normalized(self, plain: torch.Tensor) -> torch.Tensor:
        return plain.div(vector_norm(plain, dtype=torch.float32).to(plain.dtype))


@bad_layer("values", serves=("LAST",))
class ZeroVectorDividedByZero(Apart):
    """The norm is divided by without a guard, and a cut vector may be zero."""

    def normalized(self, plain: torch.Tensor) -> torch.Tensor:
        return plain.div(vector_norm(plain, dim=-1, keepdim=True, dtype=torch.float32).to(plain.dtype))


@bad_layer("inputs-unchanged", serves=("ALL",))
class NormalizedInPlace(Apart):
    """`out=` saves an allocation, and writes into the step's own rows."""

    def normalized(self, plain: torch.Tensor) -> torch.Tensor:
        return normalize(plain, dim=-1, eps=torch.finfo(plain.dtype).tiny, out=plain)


@bad_layer("values")
class SoftmaxOfOneLogit(Apart):
    """Softmax serves every classifier, and is 1 for all who have one label."""

    def activated(self, logits: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        return logits.softmax(dim=-1) if params.use_activation else logits


@bad_layer("values")
class SigmoidOfTwoLogits(Apart):
    """Two labels are taken for a yes or no, which a sigmoid serves."""

    def activated(self, logits: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        return (
            logits.sigmoid() if params.use_activation and logits.shape[-1] == 2 else super().activated(logits, params)
        )


@bad_layer("values")
class SoftmaxTwice(Apart):
    """The method applies the softmax, and the head does so again."""

    def activated(self, logits: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        return super().activated(super().activated(logits, params), params)


@bad_layer("values", parts=("models-activation",))
class ProblemTypeIgnored(Layer):
    """Scores of a regression and labels that don't exclude each other go through a softmax like all others."""

    def __init__(self, config: PoolerConfig) -> None:
        super().__init__(config)
        self.head = replace(self.head, problem_type=None)


@bad_layer("values", parts=("models-activation",))
class ProblemTypeOfSequencesAlone(Layer):
    """The activation was looked up where classify is made, and token_classify kept the default."""

    def one(self, task: str, rows: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        head = replace(self.head, problem_type=None, activation_fn=None) if task == "token_classify" else self.head
        return head_of(task, rows, params, head)


@bad_layer("values", parts=("models-activation",))
class SigmoidTakenForLabels(Layer):
    """A named sigmoid is taken for whatever suits the number of labels, which for several is a softmax."""

    def __init__(self, config: PoolerConfig) -> None:
        super().__init__(config)
        if self.head.activation_fn == "Sigmoid":
            self.head = replace(self.head, activation_fn=None)


@bad_layer("values", parts=("models-activation",))
class SoftmaxOfOneLabel(Apart):
    """A single label is asked of a softmax, and is certain whatever its logit."""

    def activated(self, logits: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        single = self.head.problem_type == "single_label_classification"
        return logits.softmax(dim=-1) if single and params.use_activation else super().activated(logits, params)


@bad_layer("values", parts=("models-activation",))
class NamedBeforeTheProblem(Layer):
    """The module that a cross-encoder names is looked up first, whatever the problem type."""

    def __init__(self, config: PoolerConfig) -> None:
        super().__init__(config)
        if self.head.activation_fn is not None:
            self.head = replace(self.head, problem_type=None)


@bad_layer("values", serves=("ALL",))
class SoftmaxOverTokens(Apart):
    """`softmax(0)` was right while results were vectors."""

    def activated(self, logits: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        many = params.use_activation and logits.shape[-1] > 1
        return logits.softmax(dim=0) if many else super().activated(logits, params)


@bad_layer("values")
class SoftmaxOverflows(Apart):
    """The softmax is written out, without taking the largest logit off first."""

    def activated(self, logits: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        if not params.use_activation or logits.shape[-1] == 1:
            return super().activated(logits, params)
        powers = logits.float().exp()
        return (powers / powers.sum(dim=-1, keepdim=True)).to(logits.dtype)


@bad_layer("inputs-unchanged", serves=("ALL",))
class CalibratedInPlace(Apart):
    """`logits -= mean` edits the step's rows where no layer has copied them."""

    def calibrated(self, logits: torch.Tensor) -> torch.Tensor:
        logits -= self.mean
        return logits / self.sigma


@bad_layer("values")
class CalibratedAfterActivation(Apart):
    """Calibration was added at the end of the function."""

    def score(self, logits: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        return self.calibrated(self.activated(logits, params))


@bad_layer("values")
class MeanAdded(Apart):
    """The mean is taken for a bias."""

    def calibrated(self, logits: torch.Tensor) -> torch.Tensor:
        return (logits + self.mean) / self.sigma


@bad_layer("values")
class SigmaMultiplied(Apart):
    """Sigma is taken for a scale."""

    def calibrated(self, logits: torch.Tensor) -> torch.Tensor:
        return (logits - self.mean) * self.sigma


@bad_layer("values")
class MeanAfterSigma(Apart):
    """The scale comes before the shift."""

    def calibrated(self, logits: torch.Tensor) -> torch.Tensor:
        return logits / self.sigma - self.mean


@bad_layer("values")
class EmbeddingCalibrated(Apart):
    """One head serves both kinds of task, calibration included."""

    def one(self, task: str, rows: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        result = super().one(task, rows, params)
        return self.calibrated(result) if task in EMBED and not params.use_activation else result


@bad_layer("dtype-and-device")
class HeadDtypeForgotten(Layer):
    """The cast is left to the layers of the head, and some heads have none."""

    def one(self, task: str, rows: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        return head_of(task, rows, params, replace(self.head, head_dtype=None))


@bad_layer("values")
class CastAtTheEnd(Layer):
    """The head runs in the model's dtype, and only its result is cast."""

    def one(self, task: str, rows: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        result = head_of(task, rows, params, replace(self.head, head_dtype=None))
        return result if self.head.head_dtype is None else result.to(self.head.head_dtype)


@bad_layer("row-count", "values")
class LayersDroppedWithActivation(Layer):
    """`use_activation=False` returns early, before the projector and the classifier."""

    def one(self, task: str, rows: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        plain = replace(self.head, projector=None, classifier=None)
        return head_of(task, rows, params, self.head if params.use_activation else plain)


@bad_layer("values", serves=("LAST",), parts=("dense-head",))
class TanhDroppedWithActivation(Layer):
    """The dense layer's tanh is taken for the activation that the flag is about."""

    def one(self, task: str, rows: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        if self.head.dense is None or task != "classify" or params.use_activation:
            return super().one(task, rows, params)
        rows = rows if self.head.head_dtype is None else rows.to(self.head.head_dtype)
        return head_of(task, self.head.dense(rows), params, replace(self.head, dense=None))


@bad_layer("values", serves=("LAST",), parts=("dense-head",))
class DenseForEveryTask(Layer):
    """The dense layer belongs to the model, so embeddings go through it too."""

    def one(self, task: str, rows: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        if self.head.dense is None or task == "classify":
            return super().one(task, rows, params)
        rows = rows if self.head.head_dtype is None else rows.to(self.head.head_dtype)
        return super().one(task, self.head.dense(rows).tanh(), params)


@bad_layer("values", serves=("LAST",), parts=("dense-head",))
class DenseInTheModelsDtype(Layer):
    """The dense layer was there before heads had a dtype of their own."""

    def one(self, task: str, rows: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        if self.head.dense is None or task != "classify":
            return super().one(task, rows, params)
        return head_of(task, self.head.dense(rows).tanh(), params, replace(self.head, dense=None))


@bad_layer("row-count", "values")
class ProjectorOnScores(Layer):
    """The projector belongs to the model, so it is applied for every task."""

    def one(self, task: str, rows: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        rows = rows if self.head.projector is None or task in EMBED else self.head.projector(rows)
        return super().one(task, rows, params)


@bad_layer("inputs-unchanged")
class DefaultWrittenBack(Layer):
    """The default of `dimensions` is worked out in the head, and kept in the caller's params."""

    def one(self, task: str, rows: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        result = super().one(task, rows, params)
        if task in EMBED and params.dimensions is None:
            params.dimensions = result.shape[-1]
        return result
