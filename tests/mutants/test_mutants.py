"""The mutation check of the package: what it breaks, which tests it chooses, and what it says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.calls import Record, callers_of, read, write
from tests.mutants.edits import mutants, sample
from tests.mutants.runner import Copy

SOURCE = '''
"""A module whose docstring has 1 number."""
LIMIT = 3


class Counter:
    @property
    def value(self, start: int = 1) -> bool:
        """Nothing in 2 docstrings is edited."""
        pairs = zip([1], (2), strict=True)
        if start <= (LIMIT) and not self.empty:
            self.add(start + 1)
        for item in pairs:
            if item is None:
                continue
        return [x for x in pairs if x] or None
'''


def test_each_kind_of_edit_compiles_and_changes_one_place() -> None:
    edits = {(m.operator, m.after): m for m in mutants("plan/counter.py", SOURCE)}
    for operator, after in [
        ("comparison changed", "if start < (LIMIT) and not self.empty:"),
        ("logic swapped", "if start <= (LIMIT) or not self.empty:"),
        ("negation dropped", "if start <= (LIMIT) and (self.empty):"),
        ("condition negated", "if (not (start <= (LIMIT) and not self.empty)):"),
        ("statement removed", "pass"),
        ("operator changed", "self.add(start - 1)"),
        ("number changed", "self.add(start + 2)"),
        ("comparison changed", "if item is not None:"),
        ("loop left", "break"),
        ("filter dropped", "return [x for x in pairs if True] or None"),
        ("result dropped", "return None"),
    ]:
        mutant = edits[operator, after]
        assert mutant.function == "Counter.value"
        assert mutant.first_lines == (7,), "decorators are part of a function"
        compile(mutant.text, "mutant", "exec")
    assert not any(
        "strict=False" in m.after or "docstring" in m.before or "start: int" in m.before for m in edits.values()
    )


def test_a_sample_is_the_same_wherever_its_lines_are() -> None:
    before = sample([*mutants("a.py", SOURCE)], 5, seed=1)
    after = sample([*mutants("a.py", "\n\n" + SOURCE)], 5, seed=1)
    assert [(m.operator, m.before, m.after, m.line + 2) for m in before] == [
        (m.operator, m.before, m.after, m.line) for m in after
    ]
    assert len({m.line for m in before}) == 5
    assert before != sample([*mutants("a.py", SOURCE)], 5, seed=2)


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    function = ("plan/a.py", 3)
    records = {
        "tests/test_a.py::test_x[1]": Record(0.5, frozenset({function}), spark=False),
        "tests/test_a.py::test_x[2]": Record(0.1, frozenset({function}), spark=False),
        "tests/test_b.py::test_y": Record(2.0, frozenset({function, ("plan/a.py", 9)}), spark=True),
        "tests/test_b.py::test_z": Record(0.2, frozenset(), spark=False),
        "tests/test_b.py::test_w": Record(0.3, frozenset({function}), spark=False),
    }
    write(records, tmp_path)
    assert read(tmp_path) == records
    chosen = callers_of(records, [function], seconds=10)
    assert [test.partition("::")[2] for test in chosen] == ["test_x[2]", "test_w", "test_x[1]", "test_y"]
    assert callers_of(records, [function], seconds=0.25) == ["tests/test_a.py::test_x[2]", "tests/test_b.py::test_y"]


@pytest.mark.slow
def test_a_broken_function_is_noticed(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy")
    file = "storage/folders.py"
    source = (Path(__file__).parents[2] / "gpujoin" / file).read_text()
    outcomes = {
        copy.judge(mutant, ["tests/test_folders.py"], deadline=120).verdict
        for mutant in sample([*mutants(file, source)], 3, seed=1)
    }
    assert outcomes <= {"caught", "survived"}
    assert "caught" in outcomes
