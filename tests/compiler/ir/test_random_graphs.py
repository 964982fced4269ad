"""The generator itself: others' property tests are only as good as its graphs."""

from __future__ import annotations

from inspect import getsource

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.compiler.ir.random_graphs import CONTROL_MAKERS, LARGEST_VALUE, MAKERS, example_values, graphs, size_choices
from tests.support.oracles import assert_close
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.ir.semantics import interpret as interpret_module
from wholestep.compiler.ir.semantics import values
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import float32, float64
from wholestep.compiler.ir.verify import verify


@settings(max_examples=100)
@given(st.data(), st.sampled_from([float32, float64]), st.booleans())
def test_graphs_are_well_formed_and_their_values_finite_and_small(data, dtype, symbolic):
    graph = data.draw(graphs(dtype=dtype, symbolic=symbolic, control=True))
    verify(graph)
    assert symbolic or not graph.symbols
    sizes = data.draw(size_choices(graph))
    inputs, state = example_values(graph, sizes, np.random.default_rng(0))
    result = interpret(graph, inputs=inputs, state=state)
    for value in (*result.outputs.values(), *result.state.values()):
        assert np.abs(value.astype(np.float64)).max(initial=0.0) < 1e6


@settings(max_examples=150)
@given(st.data())
def test_float32_stays_close_to_float64(data):
    """Else a kernel that is right could fail: jumps read only exact values, and nothing is near a pole."""
    graph = data.draw(graphs(max_nodes=16))
    sizes = data.draw(size_choices(graph))
    inputs, state = example_values(graph, sizes, np.random.default_rng(1))
    expected = interpret(graph, inputs=inputs, state=state, sizes=sizes)
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        for module in (values, interpret_module):
            patch.setattr(module, "interpreter_dtype", lambda dtype: dtype.numpy)
        actual = interpret(graph, inputs=inputs, state=state, sizes=sizes)
    for output in graph.outputs:
        assert_close(
            actual.outputs[output.name], expected.outputs[output.name], output.node.type.dtype, scale=LARGEST_VALUE
        )
    for name in expected.state:
        assert_close(actual.state[name], expected.state[name], float32, scale=LARGEST_VALUE)


def test_every_op_is_generated():
    """All but `gradient`, which has no value, loops, whose bodies ops/test_scan.py draws, and what ranks exchange."""
    missing = {name for name, op in OPS.items() if op.family is not Family.COLLECTIVE} - {"gradient", "scan"}

    # Makers are drawn evenly: what one makes is looked for in graphs of its own, in more of them where it is rare.
    for examples, makers in ((8, [*MAKERS, *CONTROL_MAKERS]), (300, MAKERS)):
        for maker in makers:
            if examples == 8 or any(f'"{op}"' in getsource(maker) for op in missing):

                @settings(max_examples=examples, phases=[Phase.generate])
                @given(graphs(max_nodes=6, only=maker))
                def look(graph: IRGraph) -> None:
                    missing.difference_update(n.op for n in graph.nodes)

                look()
    assert not missing, (
        f"no maker of tests/compiler/ir/random_graphs.py draws {', '.join(sorted(missing))}: add it to one"
    )
