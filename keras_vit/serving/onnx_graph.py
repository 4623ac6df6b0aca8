"""What is put right in ONNX graphs: two libraries' gaps, and names.

tf2onnx does not know TensorFlow's Erfc, which the exact GELU is made of. ONNX Runtime
1.31 fuses a padding by zeros into the maximum that reads it, which pads by minus
infinity: another network, where a BiT's root is negative at its edge.
"""

import functools
from pathlib import Path
from typing import Any


@functools.cache
def know_erfc() -> None:
    """Teaches tf2onnx that erfc(x) = 1 - erf(x)."""
    import numpy as np
    from tf2onnx import utils
    from tf2onnx.handler import tf_op

    class Erfc:
        @classmethod
        def version_9(cls, graph: Any, node: Any, **kwargs: Any) -> None:
            (output,) = node.output
            dtype, shape = graph.get_dtype(output), graph.get_shape(output)
            numbers = utils.map_onnx_to_numpy_type(dtype)
            one = graph.make_const(utils.make_name("one"), np.array(1, numbers))
            graph.remove_node(node.name)
            erf = graph.make_node(
                "Erf", [node.input[0]], shapes=[shape], dtypes=[dtype]
            )
            graph.make_node(
                "Sub",
                [one.output[0], erf.output[0]],
                name=node.name,
                outputs=[output],
                shapes=[shape],
                dtypes=[dtype],
            )

    tf_op("Erfc")(Erfc)


def mend(path: Path) -> None:
    """Calls the batch "batch", and keeps paddings apart from the maxima after them.

    A maximum of one tensor, which is that tensor, stands between: it is not fused.
    """
    import onnx

    model = onnx.load(path)
    graph = model.graph
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    padded = {node.output[0] for node in graph.node if node.op_type == "Pad"}
    for place, node in reversed(list(enumerate(graph.node))):
        if node.op_type == "MaxPool" and node.input[0] in padded:
            apart = f"{node.input[0]}/apart"
            between = onnx.helper.make_node("Max", [node.input[0]], [apart])
            node.input[0] = apart
            graph.node.insert(place, between)
    onnx.save(model, path)
