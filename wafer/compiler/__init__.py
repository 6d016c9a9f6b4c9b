"""The compiler: kernels with malleable rectangles, and where on the wafer each one goes."""
