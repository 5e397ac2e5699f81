"""parbench's code, in rooms that follow the flow; README.md lists them."""
