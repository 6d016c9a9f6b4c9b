"""Keys of ``train_input`` and ``eval_input``: a class per data processor. No jax here."""
