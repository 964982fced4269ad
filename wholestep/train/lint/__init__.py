"""The training linter: rules over a run's traced graph, settings and data, checked before the first step."""
