"""Partial products on a GPU: the integers, digits and bits of a CPU, compiled and interpreted; on a real GPU."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.cuda.harness.processes import compiled, interpreted  # noqa: E402


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize("device", ["any", "nvidia", "hopper"])
def test_interpreted_steps_agree_with_a_cpus(device):
    found = interpreted("partial", device)
    assert len(found) == 22
    assert not [each for each in found if each["wrong"] or each["digits"] or each["bits"]]
    assert sum(each["certified"] > 0 for each in found) >= 3
    assert not [each for each in found if each["again_digits"] or each["again_bits"]]
    assert sum(each["pending"] > 0 for each in found) >= 10
    # All is proved but where the bits are fewer than the moduli hold.
    fewer = 0
    for each in found:
        dtype, _, _, target, *bits = each["case"]
        count = 40 if dtype.startswith("complex") else 20
        if target == "correctly-rounded":
            assert 0 < each["again_proved"] < count if bits else each["again_proved"] == count, each
            fewer += bool(bits)
    assert fewer == 4


@pytest.mark.evidence
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    ("dtype", "target"),
    [
        ("float64", "reproducible"), ("complex128", "correctly-rounded"), ("float32", "reproducible"),
        ("float32", "correctly-rounded"),
    ],
)  # fmt: skip
def test_steps_compile(architecture, dtype, target):
    found = compiled("partial", architecture, dtype, target)
    assert {each["kernel"] for each in found} == {
        "largest_columns", "sum_columns", "split_columns", "residue_product", "add_digit_shares", "join_fast",
        "finish", "split_more", "join_more",
    } | ({"rejoin_tiles"} if dtype != "float32" else set()) | (
        {"certify_sums"} if target == "reproducible" else set()
    )  # fmt: skip
    assert not [each for each in found if each["serialized"]]
    assert all(each["stack"] == 0 for each in found if each["kernel"] in ("add_digit_shares", "residue_product"))


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("target", ["reproducible", "correctly-rounded"])
def test_steps_on_a_gpu_certify_the_bits_of_one_product(target, rng):
    """In two pieces; of ordinary data next to everything is certified."""
    import dataclasses

    import prismm
    from prismm.cuda.device import device_of
    from tests.cuda.harness.partial import every_step, work_of

    m, k, n = 300, 500, 200
    a, b = (torch.from_numpy(rng.standard_normal(shape)).cuda() for shape in ((m, k), (k, n)))
    keywords = {"reproducible": True} if target == "reproducible" else {"accuracy": target}
    expected = prismm.matmul(a, b, **keywords).cpu().numpy()
    work = work_of(a.dtype, k, 15 if target == "reproducible" else 19, target, device_of(0))
    work = dataclasses.replace(work, place=a.device)
    out, flags, *_ = every_step([(a[:, :177], b[:177]), (a[:, 177:], b[177:])], work)
    tile, height, width = work.strip
    word, out, left = flags.cpu().numpy()[0], out.cpu().numpy(), 0
    for i, j in itertools.product(range(m), range(n)):
        if word[i // height, j // width] >> (i % height // tile) & 1:
            left += 1
        else:
            assert np.array_equal(out[i, j], expected[i, j])
    assert left < m * n // 100
