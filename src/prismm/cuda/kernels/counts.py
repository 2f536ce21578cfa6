"""What kernels count: entries by the path that set them, and those that have the scheme's value."""

import triton.language as tl

SPECIAL, EXACT, BY_MAGNITUDE, SCHEME_VALUE = (tl.constexpr(i) for i in range(4))
"""Those that meet Inf or NaN; exact ones, rounded; those that products of magnitudes certify; and those that the scheme
made.
"""
