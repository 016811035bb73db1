"""The generator's scenarios as a Hypothesis strategy, for tests that want its search and its shrinking."""

from collections.abc import Callable

from hypothesis import strategies as st

from fuzz.draws import Draw
from fuzz.generator import generate
from fuzz.mix import Mix
from oracle.scenario import Scenario


class HypothesisDraw(Draw):
    """Choices by Hypothesis, which can search with feedback and shrink."""

    def __init__(self, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        """See `Draw.integer`."""
        return low if low == high else self._draw(st.integers(low, high))

    def chance(self, probability: float) -> bool:
        """See `Draw.chance`; to the nearest hundredth, and never ruled out."""
        if probability in (0, 1):
            return bool(probability)
        return self.integer(0, 99) >= 100 - max(1, round(100 * probability))


@st.composite
def scenarios(draw: st.DrawFn, mix: Mix) -> Scenario:
    """Scenarios within the bounds of the mix."""
    return generate(HypothesisDraw(draw), mix)
