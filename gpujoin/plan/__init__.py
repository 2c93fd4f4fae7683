"""Planning: pure functions of schemas, sizes and settings that decide how joins and queries run."""
