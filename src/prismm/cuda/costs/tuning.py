"""Tuning: figures of one card that predictions need and no calibration measures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """What was measured on one card by hand, beside what `prismm calibrate` measures on any.

    A table that lacks one of these takes the value here, which is an H200's.
    """

    provenance: str = "NVIDIA H200, measured by hand"
    """Which card these figures are of, and how they were found."""

    # cuBLAS's own products.
    native_tile: int = 64
    """Rows and columns that cuBLAS rounds small extents up to, about."""
    native_fine: float = 0.9
    """Share of the rate that it reaches in tiles of 64 x 64, or where the inner dimension is cut."""
    native_small: float = 0.6
    """The same where the inner dimension is cut for a result of one such tile."""
    native_ends: int = 56
    """Terms that a tile's beginning and end take the time of, in float64, where a result is one tile wide or high."""
    native_narrow_seconds: float = 1.2e-6
    """Seconds that tiles of 32 x 64 cost besides, in float64."""
    native_cut_seconds: float = 8e-6
    """Seconds that cutting the inner dimension costs besides."""
    native_cut_from: int = 1024
    """Inner dimension from which on it is cut."""
    native_odd: float = 1.24
    """How many times as long float64 takes where rows begin at odd multiples of eight bytes (n = 1777 and 3333)."""
    native_seen_float64: float = 0.4
    """Share of writing the result, or of multiplying, whichever is less, that is not hidden behind the other one; in
    float64, at inner dimensions of 32, 128 and 512.
    """
    native_seen_float32: float = 1.0
    """The same in float32."""

    # Residues: joins, repair, Strassen's products.
    exact_join: float = 2.7e-12
    """Seconds of the exact join for an entry and modulus."""
    magnitude_planes: float = 7e-12
    """Seconds for an element of the planes of magnitudes."""
    magnitude_products: float = 3.6e-15
    """Seconds for a product of two magnitudes."""
    exact_by_rows: float = 2.3e-12
    """Seconds for a product in twice float64's precision, where rows of a strip are summed at once."""
    first_repair: float = 5e-5
    """Seconds of the first repair of a call: its instructions come from memory."""
    rejoin_complex: float = 11.0
    """How many times as long the second pass takes for an entry of complex data."""
    rejoin_rounded: float = 4.0
    """How many times as long it takes for correct rounding."""
    strassen_margin: float = 1.04
    """How many times as fast as a whole product Strassen's seven must be predicted to be: their tiles are half as deep,
    so that they reach 2 % less, and they take twice the memory.
    """

    # Other schemes.
    multiword_chunk_end: int = 20
    """Terms that the end of a chunk of words takes the time of."""
    multiword_ends: int = 100
    """Terms that the beginning and end of a tile of words take the time of."""
    slices_fp16: float = 0.79
    """Share of the rate of FP16 words that slices of FP16 reach."""
    slices_fp64: float = 0.93
    """Share of cuBLAS's float64 rate that slices of FP64 reach."""
    tile_products: float = 1.37
    """Operations of products of segments, in units of the INT8 rate; what of folds is hidden behind products is counted
    with these.
    """
    tile_folds: float = 0.0047
    """Float32 numbers that sums are folded into, in units of the INT8 rate: level 4 takes 4.1 ms and 9.3 ms·(32/tile
    width) at n = 8192.
    """
    tile_pairs: float = 3.0
    """How many times as long products take whose pairs of tiles have one exponent; counted in
    `cuda.tile_int8.kernels.pair_product`.
    """
    tile_split: float = 0.5
    """Share of the memory's rate that splits of tiles reach."""
    tile_certify: float = 0.32
    """Share of the memory's rate that certificates of tiles reach."""
