"""Kernels of products of words where there is no GPU: compiled for one, and interpreted."""

import pytest

from tests.cuda.harness.processes import compiled, interpreted

pytest.importorskip("triton")


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "dtype", "layout", "formats"),
    [
        ("sm_90", "float32", "rows", ["fp16 2 12", "bf16 3 0"]),
        ("sm_90", "complex64", "columns", ["fp16 2 12"]),
        ("sm_90", "float32", "rows", ["fp16 2 12 direct"]),
        ("sm_90", "float32", "columns", ["fp16 2 12 direct"]),
        ("sm_90", "float32", "rows", ["fp16 2 12 shared"]),
        ("sm_80", "float32", "rows", ["fp16 2 12", "tf32 2 0"]),
        ("sm_80", "float32", "rows", ["fp16 2 12 shared"]),
        ("gfx942", "float32", "columns", ["fp16 2 12"]),
    ],
)
def test_kernels_compile_to_matrix_instructions(architecture, dtype, layout, formats):
    found = compiled("words", architecture, dtype, layout, *formats)
    kernels = [
        ["multiply_by_words"] if "direct" in x else ["split_words", "words_product", *["add_shares"] * ("shared" in x)]
        for x in formats
    ]
    assert [entry["kernel"] for entry in found] == [name for some in kernels for name in (*some, "repair_words")]
    for entry in found:
        if entry["kernel"] in ("words_product", "multiply_by_words"):
            assert entry["matrix"] > 0
            assert (entry["wgmma"] > 0) == (architecture == "sm_90")
            # What is spilled are numbers of a tile; none of the sums.
            assert entry.get("stack", 0) <= (64 if entry["kernel"] == "multiply_by_words" else 16), entry
        elif entry["kernel"] == "repair_words":
            assert (entry["double"] > 0) == (architecture != "gfx942") and entry["fused"] == 0
        else:
            assert entry.get("stack", 0) == 0, entry
            if dtype == "float32" and architecture != "gfx942":
                assert entry["wide"] > 0, entry


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize("device", ["nvidia", "hopper"])
def test_interpreted_kernels_keep_their_word(device):
    found = interpreted("words", "0/1", device)
    assert len(found) == (34 if device == "nvidia" else 66)
    assert not [entry for entry in found if entry["wrong"]]
