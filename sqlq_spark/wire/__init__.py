"""The transport's format: addresses, headers, rows and payloads. No IO."""

LOWEST_SEQ, HIGHEST_SEQ = -(2**63), 2**63 - 1  # a seq is a bigint
