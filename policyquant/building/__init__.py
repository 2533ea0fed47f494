"""From a plan to a model: construction, names, loading."""
