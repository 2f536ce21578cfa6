"""Programs on several ranks, their products made by a policy."""

import pytest

from tests.distributed import cases


@pytest.mark.parametrize("recipe, sequence", [("native", False), ("correctly-rounded", True)])
def test_tensor_parallel_layers_have_the_bits_of_one_device(recipe, sequence, ranks):
    ranks.run(cases.tensor_parallel, recipe, sequence)


@pytest.mark.parametrize("recipe", ["native reproducible", "correctly-rounded", "1e-13"])
def test_sums_of_the_operator_are_rounded_as_on_one_device(recipe, ranks):
    ranks.run(cases.operator_sums, recipe)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_data_parallel_models(kind, ranks):
    ranks.run(cases.data_parallel, kind)


def test_a_graph_that_adds_over_ranks_is_told_of():
    """A compiled graph holds each rank's part of a product, and torch's sum of them."""
    import warnings

    import torch
    import torch.distributed._functional_collectives

    from prismm import Policy
    from prismm.programs.compile import ProductPass

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.ops._c10d_functional.all_reduce.default, (x, "sum", "0")))
    with pytest.warns(UserWarning, match="adds entries over ranks"):
        ProductPass(Policy.of("correctly-rounded"), {})(graph)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ProductPass(Policy.of("native"), {})(graph)
