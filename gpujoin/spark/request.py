"""What the front end asks of the runtime: one join over two prepared DataFrames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpujoin.config import Strategy
from gpujoin.errors import JoinSpecError
from gpujoin.model.jointype import Side
from gpujoin.model.stages import DeterminismLevel

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from gpujoin.config import Options
    from gpujoin.model.spec import JoinSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSide:
    """The schema of one prepared input, in Spark's terms and in Arrow's; the same columns in the same order.

    Column names are unique over both sides (``l0``, ``l1``, …, ``r0``, …).

    Attributes
    ----------
    spark : pyspark.sql.types.StructType
        Schema of the DataFrame.
    arrow : pyarrow.Schema
        Schema of the batches that its rows become.
    size_bytes : int or None
        Spark's estimate of its size; ``None`` if there is none.
    rows : float or None
        The same of its rows.
    determinism : DeterminismLevel
        What each partition is known to have when a task runs again.
    """

    spark: StructType
    arrow: pa.Schema
    size_bytes: int | None = None
    rows: float | None = None
    determinism: DeterminismLevel = DeterminismLevel.INDETERMINATE

    def __post_init__(self) -> None:
        if self.spark.names != self.arrow.names:
            raise JoinSpecError(
                f"Spark columns {self.spark.names} differ from Arrow columns {self.arrow.names}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """One join, fully decided.

    Attributes
    ----------
    spec : JoinSpec
        Over the Arrow schemas of the two sides. The result has the columns of :attr:`output_schema`.
    left, right : PreparedSide
        The inputs.
    strategy : Strategy
        ``BROADCAST``, ``SHUFFLE`` or ``NESTED_LOOP`` (the build side is broadcast, there are no keys).
    build_side : Side
        Which side is built (and broadcast); the other is streamed past it.
    options : Options
        Settings, with ``backend`` as it may be overridden for this join.
    partitions : int or None
        Partitions of the exchange; ``None``: the runtime decides.
    join_id : str
        Unique in the driver; names the Python function of the join's stage, metrics and explanations.
    description : str
        One line for people: join type, keys and condition.
    cheap_to_sample : bool
        Whether the first rows of both sides can be had without computing much else.

    Raises
    ------
    JoinSpecError
        If the strategy is not one that the runtime executes, or a column name occurs on both sides.
    """

    spec: JoinSpec
    left: PreparedSide
    right: PreparedSide
    strategy: Strategy
    build_side: Side
    options: Options
    partitions: int | None = None
    join_id: str
    description: str = ""
    cheap_to_sample: bool = False

    def __post_init__(self) -> None:
        if self.strategy not in (Strategy.BROADCAST, Strategy.SHUFFLE, Strategy.NESTED_LOOP):
            raise JoinSpecError(f"strategy {self.strategy.value!r} cannot be executed; choose one first")
        shared = set(self.left.arrow.names) & set(self.right.arrow.names)
        if shared:
            raise JoinSpecError(f"column names {sorted(shared)} occur on both sides")

    def side(self, side: Side) -> PreparedSide:
        """Give the input on one side."""
        return self.left if side is Side.LEFT else self.right

    @property
    def output_schema(self) -> pa.Schema:
        """Schema of the result."""
        return self.spec.output_schema(self.left.arrow, self.right.arrow)
