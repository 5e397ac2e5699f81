"""Images, the host's environment, and what a machine lacks."""
