"""How Hypothesis draws in tests."""

from __future__ import annotations

import hypothesis
from hypothesis import HealthCheck
from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.internal.constants_ast import Constants


def settle() -> None:
    """Make what is drawn depend on the seed alone, whatever tests were run before and however loaded the machine is."""
    # Hypothesis draws constants that it reads in the modules that are imported, too.
    HypothesisProvider._local_constants = Constants()  # type: ignore[assignment]
    hypothesis.settings.register_profile(
        "gpujoin",
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    hypothesis.settings.load_profile("gpujoin")
