"""Values: join types, specifications, gather maps, expressions, reasons, and the backend protocol."""
