"""`ScaledHalf` on a GPU: words of FP16, made and multiplied as those of `Words`."""

from prismm.cuda.multiword.implementation import Implementation

__all__ = ["Implementation"]
