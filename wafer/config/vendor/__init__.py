"""Words of the vendor's run files: keys of every release, their defaults and older names."""
