"""GPU kernels compile where there is no GPU, to matrix instructions, without fusions that spoil them, or spills."""

import pytest

from tests.cuda.harness.processes import compiled, lines_of
from tests.cuda.offline.compiled import SHARED

pytest.importorskip("triton")


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "moduli", "dtype", "modes"), [("sm_90", 15, "float64", "012"), ("sm_80", 7, "float32", "2")]
)
def test_kernels_for_nvidia(architecture, moduli, dtype, modes):
    found = compiled("", architecture, str(moduli), dtype, modes)
    # What is made again by more moduli is multiplied in a function of its own, whose products wait for each other.
    again = {"repair_strips", "sum_again"}
    assert not [entry for entry in found if entry["serialized"] and entry["kernel"] not in again]
    names = {entry["kernel"] for entry in found}
    rows = {"split_rows"}
    if architecture == "sm_90":
        rows = {"split_rows_fused", "split_columns_fused"}
        rows |= {"strassen_sums", "strassen_products", "add_products"}
    assert names == rows | ({"rejoin_tiles"} if dtype == "float64" else set()) | {
        "largest_columns", "sum_columns", "split_columns", "residue_product", "join_fast", "finish",
        "finish_native", "combine_digits", "combine_values", "recompute_exact", "magnitude_planes", "sum_again",
        "repair_strips",
    }  # fmt: skip
    for entry in found:
        if entry["kernel"].startswith("residue_product"):
            assert entry["wgmma" if architecture == "sm_90" else "mma"] > 0 and entry["stack"] == 0
        elif entry["kernel"].startswith("split"):
            assert entry["mma" if entry["kernel"].endswith("fused") else "dp4a"] > 0 and entry["fused"] == 0
        elif entry["kernel"] not in (
            "join_fast",
            "rejoin_tiles",
            "finish",
            "combine_digits",
            "combine_values",
            "recompute_exact",
            "repair_strips",
            "sum_again",
        ):  # they ask for theirs
            assert entry["fused"] == 0
        if not entry["kernel"].startswith(
            ("finish", "recompute_exact", "repair_strips", "sum_again")
        ):  # which are not on the way of an ordinary entry
            assert entry["stack"] <= 64, entry


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_89", "sm_100", "sm_120"])
def test_kernels_fit_gpus_that_they_have_not_run_on(architecture):
    found = compiled("elsewhere", architecture)
    assert {"residue_product", "slice_product", "words_product", "tile_product", "multiply_directly"} <= {
        entry["kernel"] for entry in found
    }
    assert max(entry["shared"] for entry in found) <= SHARED.get(architecture, 227 << 10)


@pytest.mark.evidence
@pytest.mark.slow
def test_kernels_for_amd():
    found = compiled("", "gfx942", "15", "float64")
    assert any(entry["mfma"] for entry in found if entry["kernel"] == "residue_product")
    assert all(not entry["dp4a"] for entry in found)


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_who_waits_for_a_stage_acquires_what_it_stored(architecture):
    """The compiler drops the acquire of an atomic addition of 0 whose value is not used."""
    (found,) = compiled("tickets", architecture)
    assert found["acquires"] > 0 and found["releases"] > 0 and found["takes"] == 4, found


@pytest.mark.evidence
@pytest.mark.slow
def test_kernels_compiled_side_by_side_are_the_same():
    (found,) = compiled("together")
    assert found["same"] and found["kernels"] >= 10
    one, many = found["threads"]
    assert one == 1 < many


@pytest.mark.slow
def test_where_triton_keeps_nothing_an_error_says_what_to_do():
    """And the remedy works in the same process: neither the failure nor Triton's mode stays."""
    blocked, limited, mended = lines_of("without_files")
    for (message, cause, ended), number in ((blocked, 20), (limited, 27)):
        assert f"[Errno {number}]" in message and "set TRITON_CACHE_DIR" in message and ended
        assert cause == ("NotADirectoryError" if number == 20 else "OSError")
    assert mended == ["largest_columns", True]
