"""Planning: pure functions of schemas, sizes and settings."""
