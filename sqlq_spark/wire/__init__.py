"""The transport's format: addresses, headers, rows and payloads. No IO."""
