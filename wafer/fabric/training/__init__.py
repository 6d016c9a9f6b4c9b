"""PE programs of a net that trains: layers, softmax, the paths between them."""
