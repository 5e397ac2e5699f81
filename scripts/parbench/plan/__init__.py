"""config.yaml and studies in; typed Config, Study, cells and plans out, and a cell's state with its
reasons. The rules, the launcher and whoever reads a plan may call it; what trains never does.
"""
