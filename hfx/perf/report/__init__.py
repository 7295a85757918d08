"""Reports from results: an answer in one sentence, tables, charts, and one HTML page."""
