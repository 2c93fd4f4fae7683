"""What planning costs on the driver for a table of very many files."""
