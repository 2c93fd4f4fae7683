#!/usr/bin/env python3
"""Write docs/settings.md from gpujoin/config.py, or check that it is up to date.

Usage: ``python scripts/gen_settings.py`` writes; with ``--check`` the exit status is 1 when the file would change.
"""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpujoin.config import SETTINGS, Options, Setting
from gpujoin.costs import Costs
from gpujoin.errors import ConfigurationError
from scripts.pages import write_or_check

TARGET = Path(__file__).resolve().parent.parent / "docs" / "settings.md"

HEAD = """\
# Settings

<!-- Generated from gpujoin/config.py by scripts/gen_settings.py; do not edit. -->

Set them in the Spark configuration: `--conf spark.gpujoin.backend=cpu`, `spark-defaults.conf`, or
`spark.conf.set("spark.gpujoin.backend", "cpu")` at run time. Where there is no Spark, pass the option of the same row
as a keyword to `gpujoin.Options`. Sizes are bytes, or text such as `64m` and `1g`. An unknown name or an absurd value
is an error that names the setting. An *island* is a part of a query that runs in workers from its files on
([queries](queries.md#islands)).

| setting | option | default | meaning |
|---|---|---|---|
"""


FOOT = """
Environment variables, of which executors' are set by `spark.executorEnv.NAME`:

| variable | meaning |
|---|---|
| `PYSPARK_PYTHON` | PySpark's own: the Python of workers, which must have gpujoin \
([guide](guide.md#the-python-of-sparks-workers)). |
| `GPUJOIN_DISABLE` | `1`: nothing is planned in this driver, whatever its settings say ([switching things off]\
(queries.md#switching-things-off)). |
| `GPUJOIN_SLOT_DIR` | Where the lock files of GPU slots lie. Unset: `/dev/shm`, else `/tmp` \
([deploying](deploy.md#settings-for-gpus)). |
| `GPUJOIN_KERNEL_CACHE_DIR` | Where compiled CUDA kernels are kept. Unset: `gpujoin/kernels` in \
`~/.cache` or `XDG_CACHE_HOME`. |
| `GPUJOIN_CACHE` | Where benchmarks and `gpujoin demo` write their tables. Unset: `gpujoin` in the same folder. |
"""


def shown(setting: Setting) -> str:
    """A setting's default as one would write it in the Spark configuration."""
    match setting.default:
        case None:
            return "unset"
        case bool() as flag:
            text = str(flag).lower()
        case Costs():
            text = "measured"
        case Enum() as member:
            text = str(member.value)
        case tuple() as names:
            text = ",".join(names)
        case int() as number:
            text = _as_size(setting, number)
        case other:
            text = str(other)
    return f"`{text}`"


def _as_size(setting: Setting, number: int) -> str:
    for unit, bits in (("g", 30), ("m", 20)):
        text = f"{number >> bits}{unit}"
        if number and number % (1 << bits) == 0 and _means(setting, text, number):
            return text
    return str(number)


def _means(setting: Setting, text: str, number: int) -> bool:
    try:
        return bool(getattr(Options.from_conf({setting.key: text}), setting.name) == number)
    except ConfigurationError:
        return False


def render() -> str:
    """The whole page."""
    rows = [f"| `{s.key}` | `{s.name}` | {shown(s)} | {s.doc.replace('|', chr(92) + '|')} |\n" for s in SETTINGS]
    return HEAD + "".join(rows) + FOOT


if __name__ == "__main__":
    sys.exit(write_or_check(TARGET, render, __doc__))
