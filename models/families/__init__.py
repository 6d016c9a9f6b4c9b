"""One file per family of models: its configuration, its stages, its heads."""
