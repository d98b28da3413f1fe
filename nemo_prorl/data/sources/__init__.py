"""One file a source of problems; each defines SOURCE (nemo_prorl/data/building/source.py)."""
