"""Schemas, one file per family: how a publisher's record becomes a problem."""
