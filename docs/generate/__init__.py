"""What writes the generated pages of docs/ and the generated modules of the client: `make docs`. In no wheel."""
