"""What tests share: see README.md."""
