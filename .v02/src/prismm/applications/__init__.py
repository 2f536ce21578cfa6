"""Whole programs on torch's own products, each with a criterion that exact or certified arithmetic decides.

They are the programs of MixPert's evaluation (Lin et al. 2024): `prismm bench apps` runs them with native products and
with prismm's, and compares the tuner with exhaustive search. ``python -m prismm.applications.cholesky --ways tf32``
runs one of them.
"""

from __future__ import annotations

NAMES = {
    "hpl_mxp": ("hpl-mxp",),
    "cholesky": ("cholesky",),
    "ccc": ("ccc",),
    "knn": ("knn", "knn-digits"),
    "kmeans": ("kmeans", "kmeans-digits"),
    "mlp": ("mlp", "mlp-training", "mlp-digits", "mlp-small"),
    "bert": ("bert",),
}
"""The names of the programs in each module, in the order of their run; nothing is loaded for them."""
