"""What is needed to build a release; not in the wheel."""
