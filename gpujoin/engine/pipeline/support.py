"""What a pipeline can run exactly as Spark would."""

from __future__ import annotations

from gpujoin.backends.registry import BackendRequest, create_pipeline, device_obstacles
from gpujoin.engine.layout import JoinLayout
from gpujoin.errors import GpuJoinError
from gpujoin.model.backend import BackendName
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.relations import Join, Relation


def supports(tree: Relation, backend: BackendName = BackendName.CPU) -> tuple[Reason, ...]:
    """Tell why a tree cannot be run exactly as Spark would run it.

    Depends on the tree alone, not on data, files, or whether there is a GPU. Any subtree may be asked about.

    Parameters
    ----------
    tree : Relation
        The tree.
    backend : BackendName
        ``GPU``: what of it a GPU does not compute. Such nodes run on the CPU, in the same pipeline.

    Returns
    -------
    tuple of Reason
        All of them; empty if the tree can be run.
    """
    return tuple(dict.fromkeys(reason for node in tree.walk() for reason in supports_node(node, backend)))


def supports_node(node: Relation, backend: BackendName = BackendName.CPU) -> tuple[Reason, ...]:
    """Tell the same of one node, its inputs aside: for those who make trees node by node."""
    reasons = list(create_pipeline(BackendRequest()).obstacles(node))
    if backend is BackendName.GPU:
        reasons += device_obstacles(node)
    if isinstance(node, Join):
        reasons += _join_obstacles(node)
    return tuple(reasons)


def _join_obstacles(node: Join) -> tuple[Reason, ...]:
    try:
        JoinLayout.of(node.spec, node.left.schema, node.right.schema, node.build_side)
    except GpuJoinError as problem:
        return (Reason(ReasonKind.UNSUPPORTED, "join", str(problem)),)
    return ()
