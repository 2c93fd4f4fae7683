"""What benchmarks of whole queries share: measuring, checking, reporting, and what runs where."""
