"""The values that all layers share: join types, specifications, gather maps, expressions, relational nodes, reasons.

Also the two protocols that a backend implements: `gpujoin.model.backend` and `gpujoin.model.pipeline`.
"""
