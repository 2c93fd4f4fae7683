"""What anyone's own tests of joins need.

- :func:`assert_same_rows`: equality of tables as multisets of rows;
- :class:`Generator`: seeded columns full of the values that break joins.

Examples
--------
>>> import pyarrow as pa
>>> from gpujoin import join_tables
>>> from gpujoin.testing import Generator, assert_same_rows
>>> generator = Generator(seed=1)
>>> orders = generator.table(pa.schema([("k", pa.int8()), ("v", pa.string())]), 50)
>>> customers = generator.table(pa.schema([("k", pa.int8())]), 50)
>>> semi, anti = (join_tables(orders, customers, on="k", how=how, backend="cpu") for how in ("left_semi", "left_anti"))
>>> assert_same_rows(pa.concat_tables([semi, anti]), orders)
"""

from gpujoin.testing.compare import Zeros, assert_same_rows, row_counts
from gpujoin.testing.generate import KEY_TYPES, SPARK_TYPES, Generator, KeyShape, Mix

__all__ = [
    "KEY_TYPES", "SPARK_TYPES", "Generator", "KeyShape", "Mix", "Zeros", "assert_same_rows", "row_counts",
]  # fmt: skip
