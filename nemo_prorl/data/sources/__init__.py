"""One file per source of problems; each defines SOURCE (nemo_prorl/data/building/source.py)."""
