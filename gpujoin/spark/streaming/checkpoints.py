"""Who has written the state in a stream's checkpoint: Spark notes there the name of each stateful operator."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gpujoin.spark.jvm.gateway import JvmNames, gateway_of, java_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPERATOR = "transformWithStateInPandasExec"
"""Spark's name of the operator by which gpujoin keeps state."""
_METADATA = ("state/*/_metadata/metadata", "state/*/_metadata/v2/*")
"""Files of both versions of Spark's notes, by the number of the operator."""


def stateful_operators(spark: SparkSession, checkpoint: str) -> frozenset[str]:
    """Name the operators that a checkpoint has the state of; none for a query that has not begun."""
    jvm = gateway_of(spark)
    root = jvm.org.apache.hadoop.fs.Path(checkpoint)
    files = root.getFileSystem(java_session(spark).sessionState().newHadoopConf())
    names = set()
    for pattern in _METADATA:
        for status in files.globStatus(jvm.org.apache.hadoop.fs.Path(root, pattern)) or ():
            with_version = _text(jvm, files.open(status.getPath()))
            names.add(str(json.loads(with_version.splitlines()[-1])["operatorInfo"]["operatorName"]))
    return frozenset(names)


def _text(jvm: JvmNames, stream: Any) -> str:
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()
