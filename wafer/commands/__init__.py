"""One file per verb of the command line; each holds the public function behind it, too."""

from collections.abc import Mapping

from wafer.models.checkpoint.layout import config_readers


def _renamed(config: Mapping[str, object]) -> dict[str, object]:
    from wafer.vendor.runfile import renamed

    return renamed(config)


config_readers.append(_renamed)
