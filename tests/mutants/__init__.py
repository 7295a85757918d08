"""`make mutants`: see __main__.py."""
