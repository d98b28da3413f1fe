"""Families of dense decoders, one module each. A module of this package is a family if it defines FAMILY."""

from __future__ import annotations

import importlib
import pkgutil

from nemo_prorl.engines.megatron.families.family import Family

_MODULES = (importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__))
FAMILIES: dict[str, Family] = {
    module.FAMILY.name: module.FAMILY for module in _MODULES if hasattr(module, "FAMILY")
}
"""Name in `architectures` of config.json -> family."""
