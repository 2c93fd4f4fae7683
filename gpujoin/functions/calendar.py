"""Years, months and days of day numbers, in the proleptic Gregorian calendar."""

from __future__ import annotations

import numpy as np

from gpujoin.functions.vector import Array

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
"""Days of the week."""
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
"""Months of the year."""


def days_in(days: Array) -> Array:
    """Days since 1970 as NumPy's dates."""
    return days.astype("datetime64[D]")


def year_of(days: Array) -> Array:
    """Years of days since 1970."""
    return days_in(days).astype("datetime64[Y]").astype(np.int64) + 1970


def months_of(days: Array) -> Array:
    """Months since January 1970 of days since 1970."""
    return days_in(days).astype("datetime64[M]").astype(np.int64)


def month_of(days: Array) -> Array:
    """Months, from 1, of days since 1970."""
    return months_of(days) % 12 + 1


def day_of_month(days: Array) -> Array:
    """Days of the month, from 1, of days since 1970."""
    return (days_in(days) - days_in(days).astype("datetime64[M]")).astype(np.int64) + 1


def day_of_year(days: Array) -> Array:
    """Days of the year, from 1, of days since 1970."""
    return (days_in(days) - days_in(days).astype("datetime64[Y]")).astype(np.int64) + 1


def days_from_months(months: Array) -> Array:
    """First day of each month, counted from January 1970."""
    return months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)


def plus_months(days: Array, shift: Array) -> Array:
    """Days some months later, on the same day of the month, or the last one of a shorter month."""
    months = months_of(days) + shift
    first = days_from_months(months)
    most = days_from_months(months + 1) - first
    return first + np.minimum(day_of_month(days), most) - 1


def weekday(days: Array) -> Array:
    """Day of the week, Monday is 0."""
    return (days.astype(np.int64) + 3) % 7
