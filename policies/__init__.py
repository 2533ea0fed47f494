"""Presets: policies by name. `policyquant.policy.presets` reads them."""
