"""Stands in for the vendor's package of CSELFRunner, which is not here."""

from wafer.csl.syntax.releases import feature_of

_FEATURE = feature_of("CSELFRunner")
assert _FEATURE is not None
raise ImportError(f"{_FEATURE.text}, and it is not here")
