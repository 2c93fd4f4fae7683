"""What is known of Parquet files before they are decoded, for both backends."""
