"""Fails an application of which nothing can run here, where ``spark.gpujoin.require`` is true.

What is found out when, for workers without gpujoin::

    master local[*]    enable(spark): their Python is asked, as for any query
    a cluster          enable(spark): a job of one task imports gpujoin
                       a query whose tasks fail for it, on hosts that differ from that one
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpujoin.cache import Cache
from gpujoin.config import BackendChoice, Options
from gpujoin.errors import BackendUnavailableError, RequirementError
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.spark.failures import Failure, failure_of, task_error, telling_line
from gpujoin.spark.settings import check_backend, is_local
from gpujoin.spark.worker.functions import stage_function
from gpujoin.spark.worker.obstacles import BackendCheck
from gpujoin.spark.worker.python import WORKERS, note_failure, refusal

if TYPE_CHECKING:
    from pyspark import SparkContext

_MOST_PASSED = 100
_GPU = "a GPU that workers see, or spark.gpujoin.backend=auto"
_passed: Cache[tuple[str, BackendChoice], bool] = Cache(_MOST_PASSED)
"""Applications whose workers were asked and can run gpujoin, by what they were asked for."""


def check_required(context: SparkContext, conf: Mapping[str, str], options: Options) -> None:
    """Raise ``RequirementError`` if an application can run nothing here, and ``options`` have it fail for that.

    On a cluster a task is run to ask its worker, once for an application.
    """
    if not options.require:
        return
    reason = refusal(context, conf) or _backend_obstacle(conf, options)
    if reason is not None:
        raise RequirementError(reason)
    key = str(context.applicationId), options.backend
    if is_local(conf) or _passed.get(key):
        return
    try:
        check = stage_function(BackendCheck(options), "check_backend")
        (obstacle,) = context.parallelize([0], 1).mapPartitions(check).collect()
    except Exception as problem:
        if failure_of(problem) is Failure.CANCELLED:
            raise
        note_failure(context, problem)
        reason = refusal(context, conf) or Reason(ReasonKind.UNAVAILABLE, WORKERS, telling_line(problem))
        raise RequirementError(reason) from problem
    if obstacle:
        raise RequirementError(_no_gpu(obstacle))
    _passed.put(key, True)


def unmet_requirement(context: SparkContext, conf: Mapping[str, str], problem: Exception) -> Reason | None:
    """Tell why nothing of an application can run here, if that has ended a query; ``None`` for any other failure."""
    name, _, text = (task_error(problem) or "").partition(": ")
    if name.endswith(f".{BackendUnavailableError.__name__}"):
        return _no_gpu(text)
    return refusal(context, conf)


def _backend_obstacle(conf: Mapping[str, str], options: Options) -> Reason | None:
    try:
        check_backend(conf, options)
    except BackendUnavailableError as problem:
        return _no_gpu(str(problem))
    return None


def _no_gpu(why: str) -> Reason:
    return Reason(ReasonKind.UNAVAILABLE, "backend gpu", why, _GPU)
