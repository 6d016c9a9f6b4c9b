"""One reader per kind of stored rows; ``wafer.data.registry`` names them."""
