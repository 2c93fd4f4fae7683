"""What was measured so far, line by line on disk: a process that dies or hangs loses one engine on one workload."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from benchmarks.kernels.engines import Answer
from benchmarks.kernels.machine import Constants
from benchmarks.kernels.measure import Result, failure

_LOST = "its process died, or hung and was ended"


@dataclass
class Progress:
    """A log of results.

    Attributes
    ----------
    path : Path or None
        A file of JSON lines, appended to; ``None``: nothing is kept.
    machine : dict
        What the GPU and the libraries are.
    constants : Constants or None
        Of the machine, once measured.
    results : list of Result
        In the order in which they came.
    skipped : list of str
        Workloads for which there was no time.
    answers : dict of str to (str, Answer)
        For each workload an engine and its answer, which the others must give too.
    """

    path: Path | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    constants: Constants | None = None
    results: list[Result] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    answers: dict[str, tuple[str, Answer]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Progress:
        """What a file tells. What a process had begun when its last line was written has failed."""
        found = cls(path)
        begun: tuple[str, str] | None = None
        for line in _lines(path):
            if "machine" in line:  # the first line of each process
                found._lost(begun)
            begun = None
            match line:
                case {"machine": machine}:
                    found.machine = machine
                case {"constants": constants}:
                    found.constants = Constants(**{f.name: _numbered(constants[f.name]) for f in fields(Constants)})
                case {"begin": [workload, engine]}:
                    begun = workload, engine
                case {"result": result, "answer": answer}:
                    found._add(Result(**result), None if answer is None else tuple(answer))
                case {"skipped": workloads}:
                    found.skipped = workloads
        found._lost(begun)
        return found

    def _lost(self, begun: tuple[str, str] | None) -> None:
        if begun is not None:
            self.results.append(failure(*begun, _LOST))

    def tried(self, workload: str, engine: str) -> bool:
        """Whether an engine has had its turn."""
        return any((r.workload, r.engine) == (workload, engine) for r in self.results)

    def tell(self, **facts: Any) -> None:
        """Append a line; it is on disk when this returns."""
        if self.path is None:
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def begin(self, workload: str, engine: str) -> None:
        """Say what runs from now on."""
        self.tell(begin=[workload, engine])

    def end(self, result: Result, answer: Answer | None) -> None:
        """Keep what came of it; ``answer`` is ``None`` where there is none to compare others with."""
        self._add(result, answer)
        self.tell(result=asdict(result), answer=answer)

    def _add(self, result: Result, answer: Answer | None) -> None:
        self.results.append(result)
        if answer is not None:
            self.answers.setdefault(result.workload, (result.engine, answer))


def _lines(path: Path) -> Iterator[Any]:
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # cut off in the middle
            continue


def _numbered(value: Any) -> Any:
    """JSON has texts for the numbers that tables are keyed by."""
    return {int(key): rate for key, rate in value.items()} if isinstance(value, dict) else value
