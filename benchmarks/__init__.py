"""What policyquant costs, beside a peer that does the same job and a floor below which nothing can go.

Each module is one benchmark with `run(*, tiny)`; see `README.md`.
"""
