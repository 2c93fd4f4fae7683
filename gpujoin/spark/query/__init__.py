"""Whole queries on classic sessions: finding what runs here, rewriting the plan, and doing so without being asked."""
