"""What an accelerated query costs before its first row."""
