"""Find what in published numbers contradicts other numbers or the source's claims."""
