"""Turn config.yaml and studies into typed configurations, studies, cells and plans; find out the
state of a cell and the reasons for it. Training code never imports this package."""
