"""What models are made of: layers as modules, their sizes and initial values."""
