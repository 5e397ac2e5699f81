"""Build images and the host's environment; diagnose what a machine lacks."""
