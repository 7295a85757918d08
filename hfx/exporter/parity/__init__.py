"""The gate: an export answers like its checkpoint on fixed texts and on the user's data, or it is not published."""
