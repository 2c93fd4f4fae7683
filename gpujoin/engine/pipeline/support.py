"""Tells the planner which nodes run exactly as in Spark, and reads what it needs of a scan's files."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from gpujoin.backends import cpu, cudf
from gpujoin.backends.registry import BackendRequest
from gpujoin.engine.join.layout import JoinLayout
from gpujoin.errors import GpuJoinError
from gpujoin.model.backend import BackendName
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.relations import FileFooter, Join, Relation, Scan


def supports(tree: Relation, backend: BackendName = BackendName.CPU) -> tuple[Reason, ...]:
    """Reasons why a tree cannot be run exactly as in Spark; none if it can.

    Depends on the tree alone, not on data, files, or whether there is a GPU. Any subtree may be asked about. For
    ``GPU``: reasons why nodes are not computed by a GPU. Such nodes run on the CPU, in the same pipeline.
    """
    return tuple(dict.fromkeys(reason for node in tree.walk() for reason in supports_node(node, backend)))


def supports_node(node: Relation, backend: BackendName = BackendName.CPU) -> tuple[Reason, ...]:
    """Reasons why one node cannot be run, without its inputs; for callers that build trees node by node."""
    reasons = [*cpu.node_obstacles(node)]
    if backend is BackendName.GPU:
        reasons += cudf.node_obstacles(node)
    if isinstance(node, Join):
        reasons += _join_obstacles(node)
    return tuple(reasons)


def _join_obstacles(node: Join) -> tuple[Reason, ...]:
    try:
        JoinLayout.from_spec(node.spec, node.left.schema, node.right.schema, node.build_side)
    except GpuJoinError as problem:
        return (Reason(ReasonKind.UNSUPPORTED, "join", str(problem)),)
    return ()


def read_footers(scan: Scan, paths: Sequence[str], *, threads: int = 8) -> list[FileFooter]:
    """Read the footers of files, ``threads`` at the same time.

    A file that cannot be read as Spark reads the scan's columns has ``obstacles``. Raises ``ScanError``, naming the
    file, if one cannot be opened or is none of the scan's format.
    """
    backend = cpu.create_pipeline(BackendRequest())
    with ThreadPoolExecutor(max(1, min(threads, len(paths)))) as pool:
        return list(pool.map(lambda path: backend.footer(scan, path), paths))
