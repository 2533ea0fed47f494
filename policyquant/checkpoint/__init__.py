"""Checkpoints as streams of tensors: what a layer is loaded from, and where it lies."""

from policyquant.extras import require

require("torch", extra="torch", by="policyquant.checkpoint")
