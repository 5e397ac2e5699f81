"""Turns config.yaml and studies into typed Config, Study, cells and plans; tells a cell's state and
its reasons. Used by the rules, the launcher and readers of plans, never by training code.
"""
