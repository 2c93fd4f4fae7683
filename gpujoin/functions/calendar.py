"""Years, months and days of day numbers, in the proleptic Gregorian calendar, over arrays of NumPy or CuPy."""

from __future__ import annotations

from gpujoin.functions.vector import Array

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
"""Days of the week."""
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
"""Months of the year."""


def civil(days: Array) -> tuple[Array, Array, Array]:
    """Year, month and day of days since 1970-01-01.

    Notes
    -----
    Days are counted from 0000-03-01, so that the leap day ends a year, in eras of 400 years; see H. Hinnant,
    "chrono-Compatible Low-Level Date Algorithms", 2014.
    """
    shifted = days.astype("int64") + 719_468
    era = shifted // 146_097
    day_of_era = shifted - era * 146_097
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    march_month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * march_month + 2) // 5 + 1
    month = march_month + 3 - 12 * (march_month >= 10)
    return year_of_era + era * 400 + (month <= 2), month, day


def year_of(days: Array) -> Array:
    """Years of days since 1970."""
    return civil(days)[0]


def months_of(days: Array) -> Array:
    """Months since January 1970 of days since 1970."""
    year, month, _ = civil(days)
    return (year - 1970) * 12 + month - 1


def month_of(days: Array) -> Array:
    """Months, from 1, of days since 1970."""
    return civil(days)[1]


def quarter_of(days: Array) -> Array:
    """Quarters, from 1, of days since 1970."""
    return (civil(days)[1] + 2) // 3


def day_of_month(days: Array) -> Array:
    """Days of the month, from 1, of days since 1970."""
    return civil(days)[2]


def day_of_year(days: Array) -> Array:
    """Days of the year, from 1, of days since 1970."""
    before = civil(days)[0] - 1
    return days.astype("int64") - (365 * before + before // 4 - before // 100 + before // 400 - 719_163)


def week_of_year(days: Array) -> Array:
    """Weeks of ISO 8601 of days since 1970: a week belongs to the year of its Thursday."""
    days = days.astype("int64")
    return (day_of_year(days + 3 - weekday(days)) - 1) // 7 + 1


def days_from_months(months: Array) -> Array:
    """First day of each month, counted from January 1970; see :func:`civil`."""
    month = months % 12
    year = months // 12 + 1970 - (month < 2)
    era = year // 400
    year_of_era = year - era * 400
    day_of_year = (153 * ((month + 10) % 12) + 2) // 5
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


def plus_months(days: Array, shift: Array) -> Array:
    """Days some months later, on the same day of the month, or the last one of a shorter month."""
    year, month, day = civil(days)
    months = (year - 1970) * 12 + month - 1 + shift
    first = days_from_months(months)
    missing = day - (days_from_months(months + 1) - first)
    return first + day - missing * (missing > 0) - 1


def last_day(days: Array) -> Array:
    """Last days of months."""
    return days_from_months(months_of(days) + 1) - 1


def first_day(days: Array, unit: str) -> Array:
    """First day of the week, month, quarter or year of each day."""
    if unit == "week":
        return days.astype("int64") - weekday(days)
    months = months_of(days)
    return days_from_months(months - months % {"month": 1, "quarter": 3, "year": 12}[unit])


def weekday(days: Array) -> Array:
    """Day of the week, Monday is 0."""
    return (days.astype("int64") + 3) % 7
