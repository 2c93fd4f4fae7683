"""The numbers of the README are those of the committed results, with their version and machine."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from scripts import gen_readme
from scripts.bars import Pair, bars_svg


def test_the_readme_and_its_plot_are_up_to_date(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gen_readme.py", "--check"])
    status = gen_readme.main()
    assert status == 0, capsys.readouterr().out


def test_a_number_that_was_written_by_hand_is_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    changed = tmp_path / "README.md"
    text, count = re.subn(r"\| (\d+) s \|", r"| 9\1 s |", gen_readme.README.read_text(), count=1)
    assert count == 1
    changed.write_text(text)
    monkeypatch.setattr(gen_readme, "README", changed)
    monkeypatch.setattr(sys, "argv", ["gen_readme.py", "--check"])
    assert gen_readme.main() == 1
    assert "README.md as it should be" in capsys.readouterr().out
    assert changed.read_text() == text


def test_a_headline_of_another_version_fails_and_rows_of_one_say_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gen_readme, "__version__", "9.9.9")
    monkeypatch.setattr(sys, "argv", ["gen_readme.py", "--check"])
    assert gen_readme.main() == 1
    assert f"{gen_readme.HEADLINE} is of version" in capsys.readouterr().out
    assert all(str(row).count("an earlier version") == 1 for row in gen_readme.rows())


def test_results_with_a_wrong_answer_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    record = gen_readme.record(gen_readme.HEADLINE)
    record["queries"][3]["differences"] = ["not as Spark: a row is missing"]
    (tmp_path / f"{gen_readme.HEADLINE}.json").write_text(json.dumps(record))
    monkeypatch.setattr(gen_readme, "RESULTS", tmp_path)
    with pytest.raises(SystemExit, match="wrong answers: queries"):
        gen_readme.summary()


def test_bars_are_as_high_as_their_seconds() -> None:
    picture = bars_svg("title & more", "", [Pair("1", 4.0, 1.0), Pair("2", 2.0, 2.0)], "query")
    heights = [part.split('"')[1] for part in picture.split(" height=")[1:]]
    assert "title &amp; more" in picture
    assert [float(height) for height in heights[2:6]] == [182.0, 45.5, 91.0, 91.0]
