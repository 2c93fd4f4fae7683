"""An ordinary PySpark program over TPC-H tables: a report of sales. It knows nothing of gpujoin.

python app.py FOLDER
"""

from __future__ import annotations

import sys
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

spark = (
    SparkSession.builder.master("local[2]")
    .appName("report of sales")
    .config("spark.driver.memory", "4g")
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "ERROR")
    .config("spark.sql.shuffle.partitions", "4")
    .getOrCreate()
)
start = time.perf_counter()
tables = {
    name: spark.read.parquet(f"{sys.argv[1]}/{name}.parquet")
    for name in ("customer", "lineitem", "nation", "orders", "part", "supplier")
}
for name, table in tables.items():
    table.createOrReplaceTempView(name)
revenue = sf.sum(sf.col("l_extendedprice") * (1 - sf.col("l_discount"))).alias("revenue")

sold = tables["lineitem"].join(tables["orders"], sf.col("l_orderkey") == sf.col("o_orderkey"))
sold.groupBy(sf.year("o_orderdate").alias("year")).agg(revenue, sf.count("*").alias("lines")).orderBy("year").show()

buyers = sold.join(tables["customer"], sf.col("o_custkey") == sf.col("c_custkey"))
buyers = buyers.join(tables["nation"], sf.col("c_nationkey") == sf.col("n_nationkey"))
for row in buyers.groupBy("n_name", "c_mktsegment").agg(revenue).orderBy(sf.desc("revenue")).take(5):
    print(row)

spark.sql(
    """
    select s_name, p_brand, sum(l_quantity) quantity, max(l_shipdate) latest
    from lineitem join part on l_partkey = p_partkey join supplier on l_suppkey = s_suppkey
    where p_container like 'LG%' and not exists (
        select 1 from orders where o_orderkey = l_orderkey and o_orderpriority = '1-URGENT')
    group by s_name, p_brand order by quantity desc, s_name, p_brand limit 10
    """
).show(truncate=False)
print("orders without a line of more than 49:", tables["orders"].join(
    tables["lineitem"].where("l_quantity > 49"), sf.col("o_orderkey") == sf.col("l_orderkey"), "left_anti"
).count())  # fmt: skip
print(f"{time.perf_counter() - start:.3f}", file=sys.stderr)
spark.stop()
