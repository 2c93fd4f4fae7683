"""What planning asks of a pipeline: which nodes it runs exactly as Spark would, and what is in the files of a scan."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from gpujoin.backends.registry import BackendRequest, create_pipeline, device_obstacles
from gpujoin.engine.join.layout import JoinLayout
from gpujoin.errors import GpuJoinError, RelationError
from gpujoin.model.backend import BackendName
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.relations import Constant, FileFooter, Join, Relation, Scan


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


def read_footers(
    scan: Scan,
    paths: Sequence[str],
    constants: Sequence[tuple[Constant, ...]] | None = None,
    *,
    threads: int = 8,
) -> list[FileFooter]:
    """Read the footers of files.

    Parameters
    ----------
    scan : Scan
        Says which columns will be read, and how they must be readable.
    paths : sequence of str
        The files.
    constants : sequence of tuple or None
        The partition columns' values for each file.
    threads : int
        How many files are opened at once.

    Raises
    ------
    ScanError
        If a file cannot be opened or is no Parquet file; the message names it. A file that is readable, but not here as
        Spark reads it, says so in its ``obstacles``.
    RelationError
        If there are not as many constants as paths.
    """
    values = [()] * len(paths) if constants is None else list(constants)
    if len(values) != len(paths):
        raise RelationError(f"{len(values)} tuples of constants for {len(paths)} files")
    backend = create_pipeline(BackendRequest())

    def read(path: str, constants: tuple[Constant, ...]) -> FileFooter:
        return backend.footer(scan, path, constants)

    with ThreadPoolExecutor(max(1, min(threads, len(paths)))) as pool:
        return list(pool.map(read, paths, values))
