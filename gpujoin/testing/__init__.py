"""What gpujoin is tested with, for anyone's own tests.

- :func:`oracle_join`: a join by its definition, in plain Python;
- :func:`assert_same_rows`: equality of tables as multisets of rows;
- :class:`Generator`: seeded columns full of the values that break joins;
- :class:`FaultyBackend`: a backend that runs out of memory when told to.

Examples
--------
>>> import pyarrow as pa
>>> from gpujoin import JoinSpec, JoinType, KeyPair, join_tables
>>> from gpujoin.testing import Generator, assert_same_rows, oracle_join
>>> generator = Generator(seed=1)
>>> schema = pa.schema([("k", pa.int8()), ("v", pa.string())])
>>> one, two = generator.table(schema, 50), generator.table(schema, 50).select(["k"])
>>> spec = JoinSpec(JoinType.LEFT_SEMI, (KeyPair(0, 0),), left_output=(0, 1))
>>> assert_same_rows(join_tables(one, two, on="k", how="left_semi", backend="cpu"), oracle_join(one, two, spec))
"""

from gpujoin.testing.compare import Zeros, assert_same_rows, row_counts
from gpujoin.testing.faults import FaultyBackend
from gpujoin.testing.generate import KEY_TYPES, SPARK_TYPES, Generator, KeyShape, Mix
from gpujoin.testing.oracle import oracle_join

__all__ = [
    "KEY_TYPES", "SPARK_TYPES", "FaultyBackend", "Generator", "KeyShape", "Mix", "Zeros", "assert_same_rows",
    "oracle_join", "row_counts",
]  # fmt: skip
