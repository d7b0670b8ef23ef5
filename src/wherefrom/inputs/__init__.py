"""How texts, images and graphs become tensors with named units."""
