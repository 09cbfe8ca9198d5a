"""What the places of stored arrays mean. Light to import: models and idle workers do without numpy."""

# Shares of the counted tokens whose ratio is at most the stored quantile.
RATIO_QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
SPREAD_QUANTILES = (0.05, 0.5, 0.95)
# Order of what is counted by the sign of the advantage.
SIGNS = ("positive", "negative", "zero")
# How a step's budget is split; `uncounted` are its rollouts without a counted token, by reason. Add at the end only.
SPLITS = ("family", "difficulty", "length", "component", "span", "sign", "uncounted")
SPLIT_PLACE = {name: place for place, name in enumerate(SPLITS)}
