"""What construction does not load: torch.compile's machinery takes longer to import than a small model to build."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from torch import nn
from policyquant.building.construct import construct

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.linear = nn.Linear(4, 8)
        self.norm = nn.LayerNorm(8)
        nn.init.normal_(self.linear.weight, std=0.02)
        nn.init.trunc_normal_(self.embedding.weight, std=0.02)
        nn.init.xavier_uniform_(self.linear.weight)

construct(Model)
print(*(name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules))
"""


def test_a_model_is_constructed_without_importing_torch_compile() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
