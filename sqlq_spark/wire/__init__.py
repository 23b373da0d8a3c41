"""
The transport's format: addresses, headers and rows. Also the format of payloads.

Nothing here asks a database.
"""

# the lowest and the highest value of a seq, which is a bigint
LOWEST_SEQ = -(2**63)
HIGHEST_SEQ = 2**63 - 1
