"""The transport's format: addresses, headers and rows; and the format of payloads. No IO."""

# the lowest and the highest value of a seq, which is a bigint
LOWEST_SEQ = -(2**63)
HIGHEST_SEQ = 2**63 - 1
