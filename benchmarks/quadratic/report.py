"""Records as a page, and growth as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

CURVES = ("NOT IN, 2 columns", "range, inner", "as-of by 10000 groups")


def page(record: dict[str, Any], plotted: bool) -> str:
    """The record as Markdown."""
    machine = record["machine"]
    where = f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}, {machine['revision']}"
    header = ["join", "rows", "other side", "rows out", "seconds", "beside it", "ratio", "goal"]
    lines = [
        "# Joins that Spark runs quadratically", "",
        f"`python -m benchmarks.quadratic`: gpujoin {record['version']}, {where}. {record['note']}.", "",
        "| " + " | ".join(header) + " |", "|" + "---|" * len(header),
    ]  # fmt: skip
    for one in record["cases"]:
        beside = ratio = ""
        if "other_seconds" in one:
            beside = f"{one['other_engine']} {one['other_seconds']:.2f} s"
            ratio = f"{one['other_seconds'] / one['seconds']:.1f}"
        lines.append(
            f"| {one['case']} | {one['rows']:,} | {one['other_rows']:,} | {one['out']:,} | {one['seconds']:.2f} |"
            f" {beside} | {ratio} | {goal(one)} |"
        )
    lines += [""] * any("task_seconds" in one for one in record["cases"])
    for one in record["cases"]:
        if one.get("other_task_seconds"):
            split, whole = _tasks(one["task_seconds"]), _tasks(one["other_task_seconds"])
            lines.append(f"- {one['case']}: {split}; not split: {whole}.")
    if plotted:
        lines += ["", "![seconds by rows](quadratic-cpu.svg)"]
    return "\n".join(lines) + "\n"


def _tasks(seconds: Sequence[float]) -> str:
    return f"longest of {len(seconds)} tasks {max(seconds):.2f} s of {sum(seconds):.2f} s in all"


def goal(one: dict[str, Any]) -> str:
    """What was wanted of a case, and whether it was reached."""
    found = []
    if "goal_seconds" in one:
        found.append(_said(f"{one['goal_seconds']} s", one["seconds"] <= one["goal_seconds"]))
    if "goal" in one:
        found.append(_said(f"ratio {one['goal']}", one["other_seconds"] / one["seconds"] >= one["goal"]))
    return ", ".join(found)


def _said(wanted: str, reached: bool) -> str:
    return wanted if reached else f"{wanted} **missed**"


def plot(cases: Sequence[dict[str, Any]], path: Path) -> bool:
    """Seconds over rows of the cases run at several sizes, as PNG and SVG; false without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for name in CURVES:
        points = sorted((one["rows"], one["seconds"]) for one in cases if one["case"] == name)
        if len(points) > 1:
            axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.set_xlabel("rows")
    axes.set_ylabel("seconds")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend()
    for ending in (".png", ".svg"):
        figure.savefig(path.with_suffix(ending), dpi=120)
    plt.close(figure)
    return True
