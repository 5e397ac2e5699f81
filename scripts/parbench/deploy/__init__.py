"""Build images and the host's environment; find out what a machine lacks."""
