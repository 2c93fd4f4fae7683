"""Spark's resource settings where they keep it from starting any task; needs no PySpark."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpujoin.errors import ConfigurationError

_ASKED_BY_TASKS = re.compile(r"spark\.task\.resource\.[^.]+\.amount")


def check_resources(conf: Mapping[str, str]) -> None:
    """Refuse a session whose actions would wait for ever.

    Raises ``ConfigurationError`` if tasks ask for resources in local mode, in which Spark has none to give.
    """
    problem = starved(conf)
    if problem is not None:
        raise ConfigurationError(problem)


def starved(conf: Mapping[str, str]) -> str | None:
    """Tell which setting keeps Spark from starting any task, and the remedy; ``None`` if none does."""
    master = conf.get("spark.master", "")
    if not master.startswith("local") or master.startswith("local-cluster"):
        return None
    for key, amount in conf.items():
        if _ASKED_BY_TASKS.fullmatch(key) and _is_positive(amount):
            return (
                f"{key} is {amount} and the master is {master}: Spark's local mode has no resources to give, so no"
                " task would ever start. Leave the setting to cluster masters; local sessions find GPUs without it."
            )
    return None


def _is_positive(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False
