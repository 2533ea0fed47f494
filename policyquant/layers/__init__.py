"""Modules that own a quant method."""

from policyquant.extras import require

require("torch", extra="torch", by="policyquant.layers")
