"""A scheme from outside on a GPU: it keeps the protocol, and is launched, explained, prepared, summed and reported."""

from dataclasses import dataclass

import pytest
import torch

pytest.importorskip("triton")

import prismm
from prismm.core.bounds import ConventionalBound
from prismm.cuda.device import FP64
from prismm.cuda.implementation import Composite
from prismm.cuda.native.launches import multiply_directly
from prismm.cuda.native.seconds import kernel_seconds, serves_directly
from prismm.errors import EngineError
from prismm.testing import exact_product
from tests.cuda.harness.pretended import GPUS, forget, pretended


@dataclass(frozen=True)
class Plain:
    """Sums in float64, by prismm's kernel for small products, whatever the size."""

    reproducible = False

    def implementation(self, device):
        return PlainOnGpu(self) if device == "cuda" else None


class PlainOnGpu(Composite):
    a_priori = True

    def check(self, problem, engine, device):
        if engine not in (None, "cuda", FP64) or not serves_directly(problem, device):
            raise EngineError(f"{self.scheme} multiplies real matrices of one type, by {FP64!r}")
        return FP64

    def workspace(self, problem, rows, columns):
        return 0

    def products(self, problem):
        return 1

    def gpu_seconds(self, problem, rates, engine=None, strassen=None):
        return kernel_seconds(problem, rates)

    def launch_config(self, problem, device):
        return None

    def queue(self, job):
        job.program.zero(job.counts)
        multiply_directly(job.program, job.target, job.left, job.right, job.counts, job.device)

    def bound(self, problem, engine, device, a, b, statistics, weight):
        return ConventionalBound(problem.result, a, b, problem.terms, 2.0**-53)


def test_it_is_launched_explained_prepared_and_summed(tmp_path):
    a, b = torch.ones(300, 200, dtype=torch.float64), torch.ones(200, 100, dtype=torch.float64)
    with pretended(GPUS["H200"], tmp_path) as told:
        prismm.matmul(a, b, scheme=Plain())
        assert [line.partition("[")[0] for line in told[1:]] == ["zero(SCRATCH+0, 256)", "multiply_directly"]
        told.clear()
        forget()
        prismm.gemm(a, b, scheme=Plain(), alpha=2.0)
        assert [line.partition("[")[0] for line in told[-3:]] == [
            "multiply_directly",
            "combine_values",
            "recompute_exact",
        ]
        plan = prismm.explain(a, b, scheme=Plain(), accuracy="native")
        assert plan.scheme == Plain() and plan.engine == FP64 and plan.predicted_seconds > 0.0
        assert {x.scheme for x in plan.alternatives} >= {"Native(compute=None)", "Residues(moduli=14)"}
        assert prismm.prepare(b, scheme=Plain()).parts is None
        with pytest.raises(EngineError, match="multiplies real matrices"):
            prismm.matmul(a.to(torch.complex128), b.to(torch.complex128), scheme=Plain())


def test_a_scheme_without_an_implementation_is_refused(tmp_path):
    class Nowhere(Plain):
        def implementation(self, device):
            return None

    with pretended(GPUS["H200"], tmp_path), pytest.raises(EngineError, match="runs on a CPU so far"):
        prismm.matmul(torch.ones(3, 3), torch.ones(3, 3), scheme=Nowhere())


@pytest.mark.gpu
def test_it_multiplies_and_reports(rng):
    x, y = rng.standard_normal((300, 200)), rng.standard_normal((200, 100))
    found, report = prismm.matmul(*(torch.from_numpy(z).cuda() for z in (x, y)), scheme=Plain(), full_output=True)
    assert report.paths == {"a priori": found.numel()} and report.scheme == Plain()
    assert exact_product(x, y).within(found.cpu().numpy(), report.bounds).all()
