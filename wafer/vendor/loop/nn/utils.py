"""``torch.nn.utils``'s functions for the gradients of a loop."""

from wafer.loop.amp import clip_grad_norm_, clip_grad_value_

__all__ = ["clip_grad_norm_", "clip_grad_value_"]
