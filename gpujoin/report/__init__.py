"""What people and programs are told of a query: `explain`, `metrics`, `profile`, and why a part is left to Spark."""
