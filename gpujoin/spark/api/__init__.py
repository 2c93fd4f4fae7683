"""What users call on DataFrames."""
