"""Results as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def table(results: Sequence[dict[str, Any]], engine: str = "gpujoin") -> str:
    """Seconds of each engine, and the speed of ours as a multiple of the best other's."""
    names = list(results[0]["seconds"]) if results else []
    others = [name for name in names if name != engine]
    header = [
        "case",
        "rows out",
        "payload",
        "threads",
        "algorithm",
        *names,
        "wall ×",
        "CPU ×",
        "goal",
        "memory ×",
    ]
    lines = [header, ["---"] * 5 + ["---:"] * (len(header) - 5)]
    for result in results:
        times = result["seconds"]
        lines.append(
            [
                result["case"],
                f"{result['output_rows']:,}",
                str(result["payload"]),
                str(result["threads"]),
                result["algorithm"],
                *(f"{times[name]:.3f}" for name in names),
                f"**{ratio(result, 'seconds', engine, others):.2f}**",
                f"{ratio(result, 'cpu_seconds', engine, others):.2f}",
                f"{result['goal']:.1f}",
                _memory(result),
            ]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ratio(result: dict[str, Any], field: str, engine: str, others: Sequence[str]) -> float:
    """Time of the best other engine over ours."""
    times = result[field]
    return float(min(times[name] for name in others) / times[engine]) if others else float("nan")


def _memory(result: dict[str, Any]) -> str:
    ratios = result.get("memory_ratio", {})
    return ", ".join(f"{name} {value:.2f}" for name, value in ratios.items()) or "–"
