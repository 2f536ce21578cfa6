"""Statistics of errors that may be as large as the numbers themselves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


def median(errors: NDArray[Any]) -> float:
    """Median of errors, 0 or more and perhaps inf; 0.0 without any.

    An even count has two middle errors, whose sum may overflow where their mean does not.

    >>> import numpy as np
    >>> median(np.array([1e308, 1.5e308])), median(np.array([1.0, np.inf]))
    (1.25e+308, inf)
    """
    import numpy as np

    count = errors.size
    if not count:
        return 0.0
    below, above = (count - 1) // 2, count // 2
    ordered = np.partition(errors, (below, above), axis=None)
    low, high = float(ordered[below]), float(ordered[above])
    return high if math.isinf(high) else low + (high - low) / 2


def mean(errors: NDArray[Any]) -> float:
    """Mean of errors, 0 or more and perhaps inf; 0.0 without any.

    >>> import numpy as np
    >>> mean(np.array([1e308, 1.5e308])), mean(np.array([1.0, np.inf]))
    (1.25e+308, inf)
    """
    largest = float(errors.max(initial=0.0))
    if not 1.0 < largest < math.inf:
        return float(errors.mean()) if errors.size else 0.0
    # The sum of the errors may overflow; that of numbers below 1 does not.
    exponent = math.frexp(largest)[1]
    return math.ldexp(float((errors * math.ldexp(1.0, -exponent)).mean()), exponent)


def root_mean_square(errors: NDArray[Any]) -> float:
    """Root of the mean square of errors, 0 or more and perhaps inf; 0.0 without any.

    >>> import numpy as np
    >>> root_mean_square(np.array([3e300, 4e300])) == 1e300 * 12.5**0.5, root_mean_square(np.array([1.0, np.inf]))
    (True, inf)
    """
    largest = float(errors.max(initial=0.0))
    if not 0.0 < largest < math.inf:
        return largest
    # Divided first: squares neither overflow nor vanish.
    shares = errors / largest
    return largest * math.sqrt(float((shares * shares).mean()))
