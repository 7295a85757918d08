"""`hfx tune`: search better settings for a published model, measured on a real server, and prove the gain."""
