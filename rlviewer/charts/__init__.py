"""Plain rows in, plotly figure out: a dict of strict JSON. Colours are names of CSS variables, so one figure serves both themes."""
