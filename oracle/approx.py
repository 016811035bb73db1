"""Arithmetic with its error budget: a float64 value and how far an honest result may lie from it.

In NumPy, so that it shares no kernel with what it judges. Each operation adds the rounding of the
dtype it is stored in and carries the budget of its input along (running error analysis; N. Higham,
Accuracy and Stability of Numerical Algorithms, ch. 3). A budget is derived from dtype and length
alone; it is never tuned to make something pass.

Accumulation is allowed in float32 or better, with up to two roundings of partial sums to the result
dtype, as GPU libraries do when they split a reduction.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from oracle.device.memory import data

Floats = np.ndarray[Any, np.dtype[np.float64]]

FLOAT32_UNIT: Final = torch.finfo(torch.float32).eps / 2
EXACT_SUM_LIMIT: Final = 2.0**24
"""Integers whose absolute values sum to less than this add up exactly in float32, in any order."""

UNIT: Final = {dtype: torch.finfo(dtype).eps / 2 for dtype in (torch.float32, torch.float16, torch.bfloat16)}
"""The largest relative error of rounding to a dtype."""
UNDERFLOW: Final = {
    torch.float32: torch.finfo(torch.float32).tiny,
    torch.bfloat16: torch.finfo(torch.bfloat16).tiny,
    torch.float16: torch.finfo(torch.float16).tiny * torch.finfo(torch.float16).eps,
}
"""The largest error of rounding a value below the normal range; wide dtypes may flush to zero."""


@dataclass(frozen=True)
class Approx:
    """What a result should be: `value` and `error` are of one shape, `dtype` is the result's."""

    value: Floats
    error: Floats
    dtype: torch.dtype

    @classmethod
    def exact(cls, rows: torch.Tensor) -> "Approx":
        """Rows as they are: no error."""
        value = as_float64(rows)
        return cls(value, np.zeros_like(value), rows.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return tuple(self.value.shape)

    def wrong(self, actual: torch.Tensor) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Mask of the elements of `actual` outside the budget; nan is right only where nan is due, as is infinity."""
        got = as_float64(actual)
        with np.errstate(invalid="ignore"):
            # The budget of an infinite value is infinite too, and would let every number pass.
            wrong = ~(np.abs(got - self.value) <= self.error) | np.isinf(self.value)
        if wrong.any():
            wrong &= (got != self.value) & ~(np.isnan(got) & np.isnan(self.value))
        return wrong

    def rounded(self, roundings: int = 1) -> "Approx":
        """After `roundings` more roundings to the dtype."""
        relative, absolute = roundings * UNIT[self.dtype], roundings * UNDERFLOW[self.dtype]
        return Approx(self.value, self.error * (1 + relative) + np.abs(self.value) * relative + absolute, self.dtype)

    def to(self, dtype: torch.dtype) -> "Approx":
        """Cast; free where every value of the old dtype is one of the new."""
        cast = Approx(self.value, self.error, dtype)
        return cast if torch.promote_types(self.dtype, dtype) == dtype else cast.rounded()

    def linear(self, weight: torch.Tensor) -> "Approx":
        """Times a weight matrix (out, in): rows (..., in) to (..., out)."""
        matrix = as_float64(weight).T
        size = np.abs(matrix)
        terms = np.count_nonzero(matrix, axis=0).max(initial=0)
        with np.errstate(invalid="ignore"):
            error = self.error @ size
            error += (terms * FLOAT32_UNIT + 2 * UNIT[self.dtype]) * (np.abs(self.value) @ size + error)
            return Approx(self.value @ matrix, error, self.dtype)

    def mean(self) -> "Approx":
        """Float32 mean over rows (n, h) to (h,): an exact sum where integers allow it, one division."""
        count = self.value.shape[0]
        size = np.abs(self.value).sum(axis=0)
        summed = self.error.sum(axis=0)
        if not (size.max() < EXACT_SUM_LIMIT and (self.value == np.rint(self.value)).all()):
            summed += count * FLOAT32_UNIT * size
        # Dividing, or multiplying by a rounded reciprocal: two roundings at most.
        return Approx(self.value.sum(axis=0) / count, summed / count, torch.float32).rounded(2)

    def means(self, size: int) -> "Approx":
        """Float32 means over `size` rows each, (n, h) to (ceil(n / size), h); the last one's rows may be fewer."""
        means = [self.rows(start, start + size).mean() for start in range(0, self.shape[0], size)]
        value, error = (np.stack([getattr(own, name) for own in means]) for name in ("value", "error"))
        return Approx(value, error, torch.float32)

    def joined(self, other: "Approx") -> "Approx":
        """All elements of both in one row, in the dtype that holds either."""
        parts = (self, other)
        value, error = (np.concatenate([getattr(own, name).ravel() for own in parts]) for name in ("value", "error"))
        return Approx(value, error, torch.promote_types(self.dtype, other.dtype))

    def cut(self, width: int) -> "Approx":
        """The first `width` columns."""
        return Approx(self.value[..., :width], self.error[..., :width], self.dtype)

    def rows(self, start: int, stop: int) -> "Approx":
        """The rows from `start` to `stop`."""
        return Approx(self.value[start:stop], self.error[start:stop], self.dtype)

    def squeezed(self) -> "Approx":
        """Without the last dimension if that is of size 1."""
        if self.shape[-1] != 1:
            return self
        return Approx(self.value[..., 0], self.error[..., 0], self.dtype)

    def minus(self, mean: float) -> "Approx":
        """Less a constant, itself rounded to the dtype."""
        return Approx(self.value - mean, self.error + UNIT[self.dtype] * abs(mean), self.dtype).rounded()

    def over(self, sigma: float) -> "Approx":
        """Divided by a constant, itself rounded to the dtype."""
        return Approx(self.value / sigma, self.error / abs(sigma), self.dtype).rounded(2)

    def normalize(self) -> "Approx":
        """Over the L2 norm of the last dimension; a zero row stays zero."""
        with np.errstate(invalid="ignore", divide="ignore"):
            norm = np.sqrt((self.value**2).sum(axis=-1, keepdims=True))
            error_norm = np.sqrt((self.error**2).sum(axis=-1, keepdims=True))
            value = np.where(norm == 0, 0.0, self.value / norm)
            spread = (self.error + np.abs(value) * error_norm) / np.maximum(norm - error_norm, 0)
        spread = np.where(error_norm == 0, 0.0, spread)
        accumulated = (self.shape[-1] / 2 + 2) * FLOAT32_UNIT * np.abs(value)
        return Approx(value, spread + accumulated, self.dtype).rounded(2)

    def softmax(self) -> "Approx":
        """Softmax over the last dimension."""
        with np.errstate(invalid="ignore", over="ignore"):
            below = self.value.max(axis=-1, keepdims=True) - self.value
            powers = np.exp(-below)
            value = powers / powers.sum(axis=-1, keepdims=True)
            # exp(x) of a rounded difference x is off by |x| roundings, relatively.
            relative = np.expm1(2 * self.error.max(axis=-1, keepdims=True))
            relative = relative + (self.shape[-1] + 4 + below) * FLOAT32_UNIT
            # Whatever the logits, a probability lies between 0 and 1.
            error = np.minimum(value * relative, np.maximum(value, 1 - value))
            return Approx(value, error, self.dtype).rounded(2)

    def tanh(self) -> "Approx":
        """Elementwise hyperbolic tangent, whose slope is at most 1."""
        value = np.tanh(self.value)
        return Approx(value, self.error + 4 * FLOAT32_UNIT * np.abs(value), self.dtype).rounded(2)

    def maxsim(self, document: "Approx") -> "Approx":
        """Of rows (n, h), the float32 sum of each row's largest product with a row (m, h) of the document."""
        sizes, others = np.abs(self.value), np.abs(document.value)
        with np.errstate(invalid="ignore", over="ignore"):
            products = self.value @ document.value.T
            error = self.error @ (others + document.error).T + sizes @ document.error.T
            error += self.shape[-1] * FLOAT32_UNIT * ((sizes + self.error) @ (others + document.error).T)
            largest, spread = products.max(axis=-1), error.max(axis=-1)
            summed = spread.sum() + self.shape[0] * FLOAT32_UNIT * (np.abs(largest) + spread).sum()
            return Approx(np.asarray(largest.sum()), np.asarray(summed), torch.float32).rounded()

    def sigmoid(self) -> "Approx":
        """Elementwise logistic function, whose slope is at most 1/4."""
        with np.errstate(over="ignore"):
            value = 1 / (1 + np.exp(-self.value))
        return Approx(value, self.error / 4 + 4 * FLOAT32_UNIT * value, self.dtype).rounded(2)


def as_float64(tensor: torch.Tensor) -> Floats:
    """The tensor's values on the host."""
    values: Floats = data(tensor).detach().cpu().double().numpy()
    return values
