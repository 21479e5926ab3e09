"""Makes up plausible values for unknown tensors.

    assumed = AssumedValues(lambda: 0)
    assumed.loss()      # 1.0; after 100 training steps 0.5: losses and accuracies slowly improve
    assumed.share()     # 0.5; after 100 training steps 0.75: share of true comparisons
    assumed.count(6)    # 3: number of selected elements out of six

Note [Loops with assumed values]
    A script may repeat a loop until a value that it reads from the GPU is small enough. After about a thousand reads in one
    training step, each assumed value is therefore half of the previous value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable

# After this number of training steps, an assumed loss is half of its first value.
HALF_AFTER = 100

# A line of the script may read this number of values without new data from the host. Each further value is half of the previous
# value.
WITHOUT_DATA = 97
# After this number of reads within one step, assumed values begin to shrink. The number is prime, because a loop may read
# several values per iteration.
PATIENCE = 997


class AssumedValues:
    def __init__(self, trained: Callable[[], int], *, improving: bool = True) -> None:
        self._trained = trained
        self.improving = improving
        self._step = 0
        self._asked = 0
        self._made_at: Counter[Hashable] = Counter()

    def loss(self, call_site: Hashable = None) -> float:
        if not self.improving:
            return 1.0
        step = self._step_now()
        too_many = max(self._asked - PATIENCE, 0)
        if call_site is not None:
            self._made_at[call_site] += 1
            too_many = max(too_many, self._made_at[call_site] - WITHOUT_DATA)
        return HALF_AFTER / (HALF_AFTER + step) * 0.5 ** min(too_many, 60)

    def share(self) -> float:
        """Return the assumed fraction of true elements in comparisons such as `predictions == labels`."""
        return 1 - self.loss() / 2 if self.improving else 0.0

    def count(self, elements: int) -> int:
        if elements <= 1:
            return 0 if self.decide() else elements
        return min(int(self.share() * elements + 0.5), elements - 1)

    def decide(self) -> bool:
        # see Note [Loops with assumed values]
        self.note_scalar()
        return self.improving and self._asked % PATIENCE == 0

    def note_scalar(self) -> None:
        self._step_now()
        self._asked += 1

    def note_data(self) -> None:
        self._made_at.clear()

    def _step_now(self) -> int:
        step = self._trained()
        if step != self._step:
            self._step, self._asked = step, 0
            self._made_at.clear()
        return step
