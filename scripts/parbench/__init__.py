"""parbench's code, in rooms that follow the flow; docs/extending.md tells where things are."""
