"""A test fails where planning met something that it does not understand, unless it brings that about."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

_PROGRAM = """
import pytest
from gpujoin.model.reasons import Reason, ReasonKind
from tests.fallbacks import note_unexpected, watched

note_unexpected()

def test_expected():
    Reason(ReasonKind.UNSUPPORTED, "type", "void")

def test_unexpected():
    try:
        {}["absent"]
    except KeyError:
        Reason(ReasonKind.UNEXPECTED, "plan", "KeyError: 'absent'")

def test_after():
    pass

@pytest.mark.plans_badly
def test_unexpected_by_design():
    Reason(kind=ReasonKind.UNEXPECTED, what="plan", why="of a test")
"""
_CONFTEST = """
import pytest
from tests.fallbacks import watched

@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    return (yield from watched(item))
"""


def test_an_unexpected_reason_fails_its_test(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = plans_badly: of a test")
    pytester.makeconftest(_CONFTEST)
    pytester.makepyfile(_PROGRAM)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*planning did not understand this*", "*KeyError: 'absent'*"])
