"""Fixes for ONNX graphs: gaps in two libraries, and the name of the batch dimension.

tf2onnx does not support TensorFlow's Erfc, which the exact GELU uses. ONNX Runtime 1.31
fuses zero padding into a following MaxPool, which pads with minus infinity. The result
differs if a BiT's root has negative values at its edge.
"""

import functools
from pathlib import Path
from typing import Any


@functools.cache
def know_erfc() -> None:
    """Registers erfc(x) = 1 - erf(x) with tf2onnx."""
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
    """Names the batch dimension "batch", and keeps Pad and MaxPool nodes from fusing.

    A Max node with one input, which is an identity, is inserted between them.
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
