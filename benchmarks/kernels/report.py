"""The results as a page and as a plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.kernels.machine import Constants
from benchmarks.kernels.measure import Result

_GOAL = 3.0
_MEMORY_GOAL = 1.5


def speedups(results: Sequence[Result], engine: str = "auto") -> dict[str, float]:
    """cuDF's seconds over an engine's, by workload."""
    seconds = {(r.workload, r.engine): r.seconds for r in results}
    found = {}
    for (workload, name), own in seconds.items():
        other = seconds.get((workload, "cuDF"))
        if name == engine and own and other:
            found[workload] = other / own
    return found


def geometric_mean(values: Sequence[float]) -> float | None:
    """``None`` without values."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def page(results: Sequence[Result], constants: Constants, machine: dict[str, Any], goal: Sequence[str]) -> str:
    """Markdown: the machine, its constants, and a row for each engine on each workload."""
    by_name = speedups(results)
    mean = geometric_mean([by_name[name] for name in goal if name in by_name])
    lines = ["# Own kernels against cuDF", ""]
    lines += [f"- {key}: {value}" for key, value in machine.items()]
    lines += ["", "| constant | rate |", "|---|---|", f"| copy | {constants.copy_bytes / 1e12:.2f} TB/s |"]
    lines += [
        f"| random 8-byte reads | {constants.gather_words / 1e9:.1f} G/s |",
        *(f"| random {nbytes}-byte reads | {rate / 1e9:.1f} G/s |" for nbytes, rate in constants.gather_runs.items()),
        *(f"| lookups in {mb} MB | {rate / 1e9:.1f} G/s |" for mb, rate in constants.lookups.items()),
        *(f"| atomics in {mb} MB | {rate / 1e9:.1f} G/s |" for mb, rate in constants.atomics.items()),
        f"| reads and exchanges of slots | {constants.exchanges / 1e9:.1f} G/s |",
        "",
    ]
    if mean is None:
        lines += ["cuDF did not take part: there is nothing to compare with.", ""]
    else:
        worst = min(by_name.values())
        lines += [
            f"Geometric mean over {len(goal)} workloads: **{mean:.2f}×** cuDF (goal {_GOAL:g}×); worst {worst:.2f}×.",
            "",
        ]
    lines += [
        "| workload | engine | ms | × floor | × cuDF | output rows | peak / (in + out) |",
        "|---|---|---|---|---|---|---|",
    ]
    cudf = {r.workload: r.seconds for r in results if r.engine == "cuDF"}
    for result in results:
        name = f"auto ({result.algorithm})" if result.engine == "auto" else result.engine
        if result.seconds is None:
            lines.append(f"| {result.workload} | {name} | {result.problem or 'did not run'} | | | | |")
            continue
        other = cudf.get(result.workload)
        lines.append(
            f"| {result.workload} | {name} | {result.seconds * 1e3:.2f} | {result.seconds / result.floor_seconds:.1f} |"
            f" {f'{other / result.seconds:.2f}' if other else ''} | {result.output_rows} | {_memory(result)} |"
        )
    return "\n".join(lines) + "\n"


def _memory(result: Result) -> str:
    """Inputs and what was taken beyond them, over inputs and output."""
    if result.peak_bytes is None:
        return ""
    # The floor counts inputs and output once each, so it is their size.
    share = (result.input_bytes + result.peak_bytes) / max(1, result.floor_bytes)
    return f"{share:.2f}{'' if share <= _MEMORY_GOAL else ' (over)'}"


def plot(results: Sequence[Result], path: Path) -> bool:
    """Bars of milliseconds by workload and engine, and the floor; false where matplotlib is missing."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    workloads = list(dict.fromkeys(r.workload for r in results))
    engines = list(dict.fromkeys(r.engine for r in results))
    figure, axes = plt.subplots(figsize=(1.2 * len(workloads) + 3, 5), layout="constrained")
    width = 0.8 / max(1, len(engines))
    for number, engine in enumerate(engines):
        mine = {r.workload: r.seconds for r in results if r.engine == engine and r.seconds}
        places = [workloads.index(w) + number * width for w in mine]
        axes.bar(places, [s * 1e3 for s in mine.values()], width, label=engine)
    floors = {r.workload: r.floor_seconds * 1e3 for r in results if r.seconds}
    for workload, floor in floors.items():
        at = workloads.index(workload)
        axes.hlines(floor, at - width / 2, at + 0.8 - width / 2, colors="black", linestyles="dotted")
    axes.set_xticks([i + 0.3 for i in range(len(workloads))], workloads, rotation=40, ha="right")
    axes.set_ylabel("ms (dotted: floor)")
    if floors:
        axes.set_yscale("log")
        axes.legend()
    figure.savefig(path)
    plt.close(figure)
    return True
