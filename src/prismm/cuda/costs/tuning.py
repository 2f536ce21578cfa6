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

    # Conventional products in one kernel.
    kernel_start: float = 0.0
    """Seconds that a launch of it takes beyond one on an H200."""

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
    residue_ends: int = 341
    """Terms that the beginning and end of a tile of residues take the time of."""
    split_vector: float = 4.5e-9
    """Seconds for a row that is split, whatever its length: programs begin and end."""
    strassen_margin: float = 1.04
    """How many times as fast as a whole product Strassen's seven must be predicted to be: their tiles are half as deep,
    so that they reach 2 % less, and they take twice the memory.
    """

    fp8: float = 0.0
    """Operations a second of FP8 products of digits whose blocks are summed in the unit; 0 for GPUs without such sums,
    or where that is not known: Auto takes no FP8 there.
    """

    # Other schemes.
    multiword_launches: float = 7.3e-6
    """Seconds of the launches of a product of words and of its repair."""
    multiword_chunk_end: int = 14
    """Terms that the end of a chunk of words takes the time of."""
    multiword_ends: int = 126
    """Terms that the beginning and end of a tile of words take the time of."""
    multiword_scattered: int = 465
    """Terms that the end of a tile takes the time of besides where rows of the result are no multiples of 16 bytes."""
    multiword_join: float = 4e-6
    """Seconds of the launch that adds shares of a tile's chunks, beside what it reads and writes."""
    multiword_share: float = 1.2e-6
    """Seconds that each share takes for its beginning and end."""
    slices_fp16: float = 0.79
    """Share of the rate of FP16 words that slices of FP16 reach."""
    slices_fp64: float = 0.93
    """Share of cuBLAS's float64 rate that slices of FP64 reach."""
    tile_products: float = 1.265
    """Operations of products of segments, in units of the INT8 rate; what of folds is hidden behind products is counted
    with these.
    """
    tile_folds: float = 0.00434
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
