"""What published numbers say against themselves and their source's claims."""
