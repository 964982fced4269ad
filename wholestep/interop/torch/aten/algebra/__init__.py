"""ATen ops of linear algebra and complex numbers."""
