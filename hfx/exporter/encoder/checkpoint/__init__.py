"""What an encoder's checkpoint says: its architecture, its modules, and how they pool, pair and score."""
