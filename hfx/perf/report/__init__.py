"""Results as an answer, tables, charts and one HTML page. Everything here reads Results; nothing here measures."""
