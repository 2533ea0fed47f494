"""Reference models made of the package's layers."""

from policyquant.extras import require

require("torch", extra="torch", by="policyquant.models")
