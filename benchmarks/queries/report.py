"""The results of a suite as a table, a page, a plot and JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.queries.measure import DEFAULT_REPEATS, Measured
from benchmarks.queries.sources import Source
from benchmarks.queries.suite import Suite
from gpujoin.errors import BackendUnavailableError, pip_install
from gpujoin.report.amounts import align

_HEADER = (
    "query",
    "Spark, s",
    "here, s",
    "planning, s",
    "times faster",
    "of the processor",
    "joins",
    "aggregations",
    "windows",
    "plan",
    "answer",
)
_NUMBERS = len(_HEADER) - 2
"""The first columns are numbers."""
_MOST_EXPLAINED = 30
"""Pages of more queries do not say what ran where: JSON does."""


def write(
    suite: Suite,
    measured: Sequence[Measured],
    scale: float,
    source: Source,
    master: str,
    settings: Mapping[str, str],
    folder: Path | None,
    name: str,
) -> str:
    """Write all forms of the results into a folder, if one is given.

    Parameters
    ----------
    suite : Suite
        Whose queries they are.
    measured : sequence of Measured
        The queries.
    scale : float
        Scale factor of the tables.
    source : Source
        What they were read from.
    master : str
        Spark master.
    settings : mapping
        Spark settings that were given.
    folder : pathlib.Path or None
        Made if it is not there.
    name : str
        Name of the files.

    Returns
    -------
    str
        The table, for people.
    """
    rows = [_cells(query) for query in measured]
    shown = "\n".join(align([_HEADER, *rows], numbers=_NUMBERS))
    if folder is not None:
        machine = describe()
        folder.mkdir(parents=True, exist_ok=True)
        record = {
            "benchmark": suite.name,
            "scale": scale,
            "source": source.value,
            "master": master,
            "settings": dict(settings),
            "machine": machine,
            "totals": totals(measured),
            "queries": [
                {**dataclasses.asdict(query), "ratio": query.ratio, "processor_ratio": query.processor_ratio}
                for query in measured
            ],
        }
        (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
        (folder / f"{name}.md").write_text(_page(suite, rows, measured, scale, source, master, settings, machine, name))
        _plot(suite, measured, scale, folder / name)
    return f"\n{suite.title} scale {scale:g}, {master}\n\n{shown}\n\n{_summary(measured)}"


def totals(measured: Sequence[Measured]) -> dict[str, float]:
    """Sums of the medians, their ratio, the geometric mean and the least of the ratios; ratios of processor seconds."""
    spark = math.fsum(query.medians[0] for query in measured)
    here = math.fsum(query.medians[1] for query in measured)
    ratios = [query.ratio for query in measured]
    return {
        "spark_seconds": spark,
        "accelerated_seconds": here,
        "ratio": spark / here,
        "geometric_mean": statistics.geometric_mean(ratios),
        "least": min(ratios),
        "processor_ratio": math.fsum(query.processor_medians[0] for query in measured)
        / math.fsum(query.processor_medians[1] for query in measured),
        "least_processor": min(query.processor_ratio for query in measured),
    }


def _cells(query: Measured) -> tuple[str, ...]:
    spark, here = query.medians
    counts = zip(dataclasses.astuple(query.here), dataclasses.astuple(query.all), strict=True)
    shown = tuple(f"{some}/{every}" if every else "–" for some, every in counts)
    answer = "WRONG" if query.differences else "equal"
    planning = statistics.median(query.planning)
    seconds = (f"{spark:.2f}", f"{here:.2f}", f"{planning:.3f}", f"{query.ratio:.2f}", f"{query.processor_ratio:.2f}")
    return str(query.number), *seconds, *shown, "Spark's" if query.plan_is_sparks else "here", answer


def _summary(measured: Sequence[Measured]) -> str:
    total = totals(measured)
    wrong = sum(bool(query.differences) for query in measured)
    counts = ", ".join(
        f"{sum(getattr(query.here, kind) for query in measured)} of"
        f" {sum(getattr(query.all, kind) for query in measured)} {kind}"
        for kind in ("joins", "aggregations", "windows")
    )
    return (
        f"total: Spark {total['spark_seconds']:.1f} s, here {total['accelerated_seconds']:.1f} s,"
        f" {total['ratio']:.2f} times faster; geometric mean {total['geometric_mean']:.2f},"
        f" least {total['least']:.2f}; of the processor {total['processor_ratio']:.2f}, least"
        f" {total['least_processor']:.2f}; {len(measured) - wrong} of {len(measured)} answers equal; here {counts}"
    )


def _timing(repeats: int) -> tuple[str, ...]:
    """What the seconds are."""
    seconds = "econds from the text of the query to its rows in the driver"
    if not repeats:
        return (f"S{seconds}; the first run of each in one session, Spark's before gpujoin's.",)
    return (
        f"Median s{seconds}; both ways take turns in one session.",
        f"Timed runs of each, after one that is checked: {repeats}.",
    )


def _page(
    suite: Suite,
    rows: Sequence[Sequence[str]],
    measured: Sequence[Measured],
    scale: float,
    source: Source,
    master: str,
    settings: Mapping[str, str],
    machine: Mapping[str, Any],
    name: str,
) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    given = "".join(f" --conf {key}={value}" for key, value in settings.items())
    given = ("" if source is Source.PARQUET else f" --source {source.value}") + given
    repeats = measured[0].repeats
    given += "" if repeats == DEFAULT_REPEATS else f" --repeats {repeats}"
    lines = [
        f"# {suite.title}: whole queries, by Spark and accelerated",
        "",
        f"`python -m benchmarks.{suite.name} --sf {scale:g} --master '{master}'{given}` at {machine['revision']}",
        "",
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory']};",
        f"Python {machine['python']}, {versions}.",
        "",
        *_timing(repeats),
        "*planning*: the part of *here* in which gpujoin planned, which a query pays too that is left to Spark.",
        "*of the processor*: the same ratio in seconds of processors: of the driver, its JVM and their workers.",
        "*plan*: whose physical plan the query has here; with Spark's, planning is all that it can lose.",
        "*joins*, *aggregations*, *windows*: how many of those in Spark's optimized plan gpujoin runs.",
        "",
        "| " + " | ".join(_HEADER) + " |",
        "|" + "---:|" * _NUMBERS + "---|" * (len(_HEADER) - _NUMBERS),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        _summary(measured),
        "",
        f"![seconds by query]({name}.svg)",
        "",
    ]
    if len(measured) > _MOST_EXPLAINED:
        return "\n".join(lines)
    lines += ["## What ran where", ""]
    for query in measured:
        lines += [f"### Query {query.number}", "", "```", query.explanation, "```", ""]
    return "\n".join(lines)


def _plot(suite: Suite, measured: Sequence[Measured], scale: float, stem: Path) -> None:
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        raise BackendUnavailableError(
            f"the plot needs Matplotlib, which is not installed: {pip_install('bench')}"
        ) from None
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "gpujoin"
    from matplotlib import pyplot as plt

    places = range(len(measured))
    figure, axes = plt.subplots(figsize=(max(10, len(measured) / 4), 4), layout="constrained")
    for shift, way, label, color in ((-0.2, 0, "Spark", "#b0b0b0"), (0.2, 1, "gpujoin", "#2a6f97")):
        heights = [query.medians[way] for query in measured]
        axes.bar([place + shift for place in places], heights, width=0.4, label=label, color=color)
    for place, query in zip(places, measured, strict=True):
        at = (place, max(query.medians))
        axes.annotate(f"{query.ratio:.1f}×", at, ha="center", va="bottom", fontsize=8 if len(measured) < 50 else 5)
    axes.margins(x=0.01)
    axes.set_xticks(list(places), [str(query.number) for query in measured])
    axes.set_xlabel(f"{suite.title} query")
    axes.set_ylabel("seconds")
    axes.set_title(f"{suite.title} scale {scale:g}: seconds from query text to rows")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(stem.with_name(f"{stem.name}.png"), dpi=120)
    figure.savefig(stem.with_name(f"{stem.name}.svg"), metadata={"Date": None})
    plt.close(figure)
