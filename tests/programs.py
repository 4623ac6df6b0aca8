"""The operations of TensorFlow's programs, for tests that count them."""

CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def nodes_of(graph):
    """Yields the nodes of a `FuncGraph`, and those of each function at every call."""
    program = graph.as_graph_def(add_shapes=True)
    functions = {one.signature.name: one.node_def for one in program.library.function}
    waiting = [*program.node]
    while waiting:
        node = waiting.pop()
        yield node
        if node.op in CALLS:
            waiting += functions[node.attr["f"].func.name]
