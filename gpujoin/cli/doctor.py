"""``gpujoin doctor``: checks what this machine can run, and advises on the rest."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpujoin._version import __version__
from gpujoin.cli.checks import Check, Probe, Status
from gpujoin.cli.checks.gpu import gpu
from gpujoin.cli.checks.host import host
from gpujoin.cli.checks.software import engine, spark
from gpujoin.cli.checks.tables import tables

if TYPE_CHECKING:
    from argparse import _SubParsersAction

PROBES: tuple[tuple[str, Probe], ...] = (
    ("engine", engine), ("spark", spark), ("tables", tables), ("gpu", gpu), ("host", host),
)  # fmt: skip
"""Groups of the report, in its order."""


@dataclass(frozen=True, slots=True)
class Report:
    """All findings."""

    groups: tuple[tuple[str, tuple[Check, ...]], ...]
    """Findings by group, in the order of the report."""

    def usable(self, group: str) -> bool:
        """Whether every check of the group is usable; ``spark`` and ``gpu`` need the engine too."""
        checks = dict(self.groups)
        return all(check.status is not Status.MISSING for name in ("engine", group) for check in checks[name])

    def as_json(self) -> dict[str, Any]:
        """The report for machines; keys and values are stable within a minor version."""
        return {
            "version": __version__,
            "usable": {group: self.usable(group) for group in ("engine", "spark", "gpu")},
            "checks": [
                {
                    "group": group,
                    "name": check.name,
                    "status": check.status.value,
                    "found": check.finding,
                    "advice": check.advice,
                }
                for group, checks in self.groups
                for check in checks
            ],
        }

    def as_text(self) -> str:
        """The report for people: several lines, with advice under the finding it is for."""
        width = max(len(check.name) for _, checks in self.groups for check in checks)
        lines = [f"gpujoin {__version__}"]
        for group, checks in self.groups:
            lines += ["", group]
            for check in checks:
                lines.append(f"  {check.status.value:<8} {check.name:<{width}}  {check.finding}")
                if check.advice:
                    lines.append(f"  {'':<8} {'':<{width}}  -> {check.advice}")
        return "\n".join([*lines, "", self._verdict()])

    def _verdict(self) -> str:
        if not self.usable("engine"):
            return "gpujoin cannot run here: mend what is missing under engine."
        where = " and ".join(["on the CPU", *(["on the GPU"] if self.usable("gpu") else [])])
        if self.usable("spark"):
            return f"gpujoin can run here, {where}, with and without Spark."
        return f"gpujoin can run here, {where}, without Spark only: spark-submit needs what is missing under spark."


def examine(probes: Sequence[tuple[str, Probe]] = PROBES) -> Report:
    """Look at everything. Never raises: a probe that fails is a finding."""
    return Report(tuple((group, tuple(_examine_group(group, probe))) for group, probe in probes))


def _examine_group(group: str, probe: Probe) -> list[Check]:
    checks: list[Check] = []
    try:
        for check in probe():
            checks.append(check)  # noqa: PERF402  # what was found before a failure is kept
    except Exception as problem:  # noqa: BLE001  # the report must come out whatever a machine is like
        failure = f"{type(problem).__name__}: {problem}"
        checks.append(Check(f"{group} checks", Status.MISSING, failure, "Report this as a bug of gpujoin doctor."))
    return checks


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``doctor`` to the command line."""
    parser = commands.add_parser(
        "doctor",
        help="say what is usable here, and what to do about what is not",
        description="Say what is usable here, and what to do about what is not. "
        "Exit status 0 if gpujoin and spark-submit can run (on the CPU), 1 if not.",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Examine, print, and give the exit status: 1 if gpujoin or ``spark-submit`` cannot run."""
    report = examine()
    print(json.dumps(report.as_json(), indent=2) if arguments.json else report.as_text())
    return 0 if report.usable("spark") else 1
